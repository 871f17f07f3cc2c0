"""Ctrl-C comes at any moment, several times: none that counts is lost, none breaks an end."""

import signal
import threading

import pytest

from blocklab.interrupts import hand_over, patient, undisturbed


def press():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def as_before():
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pressed_late(monkeypatch):
    """As a system does it: one that is pending is raised by whatever looks for signals next."""
    real, left = signal.signal, [True]

    def setting(number, handler):
        if left:
            left.pop()
            raise KeyboardInterrupt
        return real(number, handler)

    monkeypatch.setattr(signal, "signal", setting)


def test_while_processes_start_it_waits_and_then_counts():
    done = []
    with pytest.raises(KeyboardInterrupt), undisturbed():
        press()
        press()
        done.append("in peace")
    assert done
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_is_pending_when_processes_start_counts_too(monkeypatch):
    pressed_late(monkeypatch)
    done = []
    with pytest.raises(KeyboardInterrupt), undisturbed():
        done.append("in peace")
    assert done


def test_while_others_save_it_is_not_heard():
    with patient():
        press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_is_pending_when_others_begin_to_save_is_not_heard_either(monkeypatch):
    pressed_late(monkeypatch)
    with patient():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_is_handed_over_whatever_is_pending(monkeypatch):
    pressed_late(monkeypatch)
    assert hand_over(signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert not hand_over(signal.default_int_handler)


def test_in_another_thread_nothing_is_changed():
    seen = []

    def other():
        with undisturbed(), patient():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
