"""The list of the lab's commands."""


def test_the_commands_are_listed_in_the_order_of_the_work(ask):
    shown = ask("lab", "--help")
    assert shown.exit_code == 0, shown.output
    names = ["compare", "freeze", "replay", "bisect", "ppo-sweep", "sweep", "report"]
    lines = [line.split() for line in shown.output.splitlines()]
    assert [words[0] for words in lines if words and words[0] in names] == names
