"""The surface of Ray that is used, each task a thread of this process, and machines that get lost.

Real Ray is an extra and takes seconds to start; what is tested with this is our side of it.
"""

import inspect
import threading
import time
from types import SimpleNamespace


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class _MachineLost(BaseException):
    pass


class PretendedRay:
    """A cluster of one machine with `slots` cores."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, slots=2, gpus=0, connected=False, refuses=None):
        self.slots = threading.Semaphore(slots)
        self.machines = [
            {"Alive": True, "Resources": {"CPU": slots} | ({"GPU": gpus} if gpus else {})}
        ]
        self.connected, self.refuses = connected, refuses
        self.asked, self.options, self.tasks = {}, {}, []
        self.lose_after = {}  # task's number -> reports until its machine is lost
        self.at_once = self.most_at_once = 0
        self.gone = False
        self.fails_on_results = None

    def is_initialized(self):
        return self.connected

    def init(self, **asked):
        if self.refuses is not None:
            raise self.refuses
        self.asked, self.connected = asked, True

    def shutdown(self):
        self.connected = False

    def nodes(self):
        return self.machines

    def put(self, value):
        return _Value(value)

    def get(self, what, timeout=None):
        if self.gone:
            raise RayError("unavailable\nat length")
        assert not hasattr(threading.current_thread(), "task"), "its core would count as free"
        if self.fails_on_results is not None and isinstance(what, _Task):
            raise self.fails_on_results
        return what.result()

    def wait(self, tasks, timeout):
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            done = [task for task in tasks if task.done]
            if done:
                return done[:1], [task for task in tasks if task is not done[0]]
            time.sleep(0.001)
        return [], tasks

    def cancel(self, task):
        task.cancelled = True

    def remote(self, what):
        return _Remote(self, what)


class _Value:
    done = True

    def __init__(self, value):
        self.value = value

    def result(self):
        return self.value

    def future(self):
        return SimpleNamespace(done=lambda: True, result=self.result)


class _Remote:
    def __init__(self, ray, what):
        self.ray, self.what = ray, what

    def options(self, **asked):
        self.ray.options[self.what.__name__] = asked
        return self

    def remote(self, *given):
        if inspect.isclass(self.what):
            return _Actor(self.what(*given), self.ray)
        return _Task(self.ray, self.what, given)


class _Task:
    def __init__(self, ray, function, given):
        self.ray, self.number, self.reports = ray, len(ray.tasks), 0
        self.done = self.cancelled = False
        self.value = self.error = None
        ray.tasks.append(self)
        self.thread = threading.Thread(target=self._run, args=(function, given), daemon=True)
        self.thread.task = self
        self.thread.start()

    def _run(self, function, given):
        with self.ray.slots:
            self.ray.at_once += 1
            self.ray.most_at_once = max(self.ray.most_at_once, self.ray.at_once)
            try:
                if self.cancelled:
                    raise RayError("cancelled")
                self.value = function(*given)
            except (_MachineLost, RayError) as error:
                self.error = RayError(str(error) or "the worker died")
            except Exception as error:
                self.error = RayTaskError(error)
            self.ray.at_once -= 1
            self.done = True

    def result(self):
        self.thread.join()
        if self.error is not None:
            raise self.error
        return self.value


class _Actor:
    def __init__(self, real, ray):
        self.real, self.ray, self.lock = real, ray, threading.Lock()

    def __getattr__(self, name):
        def call(*given):
            task = getattr(threading.current_thread(), "task", None)
            if task is not None and name == "report":
                task.reports += 1
                if task.reports > self.ray.lose_after.get(task.number, task.reports):
                    raise _MachineLost
            with self.lock:
                return _Value(getattr(self.real, name)(*given))

        return SimpleNamespace(remote=call)
