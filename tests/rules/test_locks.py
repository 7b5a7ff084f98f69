"""What a lock does with the answers of its owner."""

from __future__ import annotations

import pytest

from echomq_plugin import Lock, OwnershipUnknownError


class Owner:
    """Answers as told; believes for as long as it has an answer left."""

    def __init__(self, *answers: bool | None) -> None:
        self.answers = list(answers)

    def believes(self, lock: Lock) -> bool:
        return bool(self.answers)

    def confirm(self, lock: Lock) -> bool:
        answer = self.answers.pop(0)
        if answer is None:
            raise OwnershipUnknownError(lock.queue, lock.job_id)
        return answer


@pytest.mark.parametrize(
    ("answers", "ours"),
    [((True,), True), ((False, True), False), ((None, None, True), True), ((None, None), False), ((), False)],
    ids=["ours", "not-ours", "answered-late", "run-out-unanswered", "lost-already"],
)
def test_a_lock_is_asked_about_until_there_is_an_answer_or_it_has_run_out(
    answers: tuple[bool | None, ...], ours: bool
) -> None:
    """What is unknown is neither a yes nor a no, until the lock's own time has passed."""
    owner = Owner(*answers)
    assert Lock(owner, "mail", "42", "token").confirm_in_time() is ours  # type: ignore[arg-type]
    assert owner.answers == [True] * (answers == (False, True))
