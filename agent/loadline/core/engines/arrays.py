"""Array types of numeric code. Importing them does not import numpy: at run time they are ``Any``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    Mask = NDArray[np.bool_]
    Times = NDArray[np.int64]
    Codes = NDArray[np.int32]
    Rows = NDArray[np.intp]
    Randomness = np.random.Generator
else:
    # numpy takes 12 MB and 60 ms, which an agent without a numeric planner saves: see adapters.hidden_module.
    FloatArray = Mask = Times = Codes = Rows = Randomness = Any
