"""Train one agent's world model once; the promised name of ``genesis-fp16 run``.

``python scripts/train_world_model.py [AGENT]``; SE-Darwin by default.
"""

import sys

from genesis_fp16.cli.app import main

if __name__ == "__main__":
    sys.argv = ["genesis-fp16", "run", *(sys.argv[1:] or ["se-darwin"])]
    main()
