"""Loading a kernel that is on disk reads in nothing of what compiles one."""

import os
import subprocess
import sys

_SEGMENTS = """
import sys
import numpy as np
import autobatch as ab
print(ab.segment_sum(np.arange(8.0), lengths=np.array([3, 5])).tolist())
print(sorted(set(sys.modules) & {"numba.np.linalg", "numba.typed.dictimpl"}))
"""


def test_a_kernel_is_loaded_without_what_compiles_it(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"}
    run = [sys.executable, "-c", _SEGMENTS]
    first, second = (
        subprocess.run(
            run, env=environment, capture_output=True, text=True, check=True, timeout=300
        ).stdout.splitlines()
        for _ in range(2)
    )
    assert first == ["[3.0, 25.0]", "['numba.np.linalg', 'numba.typed.dictimpl']"]
    assert second == ["[3.0, 25.0]", "[]"]
