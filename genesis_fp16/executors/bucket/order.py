"""What a job needs on its way up: the files of the home first, the order last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from genesis_fp16.domain.bucket_attempt import (
    LONGEST_INLINE,
    MOST_INLINE,
    ORDER,
    BucketFile,
    BucketOrder,
    clamped_time,
)
from genesis_fp16.domain.remote_attempt import LONGEST_FILE, ORDER_FILE, JobOrder
from genesis_fp16.domain.run_spec import LONGEST_SPEC, SPEC_FILE, RunSpec
from genesis_fp16.executors.bucket.files import AttemptFiles
from genesis_fp16.executors.bucket.inputs import input_files
from genesis_fp16.system.bucket import Bucket
from infrastructure.files import read_model

log = structlog.get_logger()


class OrderUpload:
    """The upload of one attempt's order; a second try goes on where the first has failed.

    Args:
        job: Name of the job; the objects are below it.
        folder: The attempt's folder in the daemon's home.
        files: Of the attempt; learn here which folder is the agent's.
    """

    def __init__(self, bucket: Bucket, job: str, folder: Path, files: AttemptFiles) -> None:
        self._bucket, self._job, self._folder, self._home = bucket, job, folder, files
        self._uploaded: dict[Path, BucketFile] = {}

    def send(self, is_over: Callable[[], bool]) -> bool:
        """Upload what the job needs, unless an earlier daemon has; the order last.

        Args:
            is_over: Whether to give up.

        Returns:
            False if it was given up.

        Raises:
            OSError: A file cannot be read, or the bucket refused or did not answer.
            ValueError: The specification in the attempt's folder is damaged.
        """
        path = self._folder / SPEC_FILE  # not the bucket's: jobs can write that
        spec = read_model(path, RunSpec, limit=LONGEST_SPEC)
        self._home.agent_folder = spec.agent_folder
        if self._bucket.read(f"{self._job}/{ORDER}") is not None:
            return True
        order = read_model(self._folder / ORDER_FILE, JobOrder, limit=LONGEST_FILE)
        files: list[BucketFile] = []
        inline = 0
        for number, path in enumerate(input_files(spec, self._home.home)):
            if is_over():
                return False
            sent = self._put(path, number, LONGEST_INLINE if inline < MOST_INLINE else 0)
            if sent is not None:
                files.append(sent)
                inline += len(sent.content)
        upload = BucketOrder(
            home=str(self._home.home),
            spec=spec.model_dump_json(),
            order=order,
            files=tuple(files),
        )
        self._bucket.write(f"{self._job}/{ORDER}", upload.model_dump_json().encode())
        self._uploaded.clear()
        return True

    def _put(self, path: Path, number: int, longest_inline: int) -> BucketFile | None:
        """Put a file into the bucket, if it is longer than *longest_inline*; None if it is gone.

        What an earlier try has put there is not put again.
        """
        try:
            status = path.stat()
            where = str(path.relative_to(self._home.home))
            where.encode()
        except (FileNotFoundError, UnicodeEncodeError) as error:
            log.warning("file_not_uploaded", job=self._job, file=repr(str(path)), error=str(error))
            return None
        modified_ns = clamped_time(status.st_mtime_ns)
        if status.st_size <= longest_inline:
            content = path.read_bytes()
            return BucketFile(
                path=where, content=content, size=len(content), modified_ns=modified_ns
            )
        name = f"inputs/{number}-{modified_ns}"  # never of another content
        file = BucketFile(path=where, object=name, size=status.st_size, modified_ns=modified_ns)
        if self._uploaded.get(path) != file:
            self._bucket.upload(path, f"{self._job}/{name}")
            self._uploaded[path] = file
        return file
