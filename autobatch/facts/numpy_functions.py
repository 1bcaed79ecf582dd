"""A table lists the effects of NumPy's functions; `facts.call_effects` defines its format.

It has every public function except ufuncs, whose written arguments follow from their number of inputs.
"""

from typing import Any

import numpy as np
from numpy.lib import array_utils, scimath, stride_tricks

WHOLE_ARRAYS = "write it with NumPy functions on whole arrays, np.where for a choice"
INSTEAD: dict[Any, str] = {
    **dict.fromkeys((np.unique, np.histogram, np.bincount), "count with ab.segments.segment_sum into fixed bins"),
    **dict.fromkeys((np.linalg.lstsq, np.linalg.pinv), "solve the normal equations: np.linalg.solve(a.T @ a, a.T @ b)"),
    **dict.fromkeys((np.vectorize, np.frompyfunc, np.apply_along_axis), WHOLE_ARRAYS),
    **dict.fromkeys((np.median, np.percentile, np.quantile, np.partition), "sort, and take np.sort(x)[len(x) // 2]"),
}
"""What to write instead of a function, or of a call of an object of a class, that runs example by example."""

_FIRST = """
    all(a,axis,!out) any(a,axis,!out) max(a,axis,!out) min(a,axis,!out) amax(a,axis,!out) amin(a,axis,!out)
    argmax(a,axis,!out) argmin(a,axis,!out) sum(a,axis,dtype,!out) prod(a,axis,dtype,!out) mean(a,axis,dtype,!out)
    std(a,axis,dtype,!out) var(a,axis,dtype,!out) ptp(a,axis,!out) cumsum(a,axis,dtype,!out) cumprod(a,axis,dtype,!out)
    cumulative_sum(x,*,!out) cumulative_prod(x,*,!out) trace(a,offset,axis1,axis2,dtype,!out) nanmax(a,axis,!out)
    nanmin(a,axis,!out) nanargmax(a,axis,!out) nanargmin(a,axis,!out) nansum(a,axis,dtype,!out)
    nanprod(a,axis,dtype,!out) nanmean(a,axis,dtype,!out) nanstd(a,axis,dtype,!out) nanvar(a,axis,dtype,!out)
    nancumsum(a,axis,dtype,!out) nancumprod(a,axis,dtype,!out) median(a,axis,!out,overwrite_input=!a)
    nanmedian(a,axis,!out,overwrite_input=!a) percentile(a,q,axis,!out,overwrite_input=!a)
    nanpercentile(a,q,axis,!out,overwrite_input=!a) quantile(a,q,axis,!out,overwrite_input=!a)
    nanquantile(a,q,axis,!out,overwrite_input=!a) clip(a,a_min,a_max,!out) round(a,decimals,!out)
    around(a,decimals,!out) fix(x,!out) isneginf(x,!out) isposinf(x,!out) nan_to_num(x,copy=!x)
    take(a,indices,axis,!out) compress(condition,a,axis,!out) dot(a,b,!out) outer(a,b,!out)
    busday_count(a,b,weekmask,holidays,busdaycal,!out) busday_offset(a,offsets,roll,weekmask,holidays,busdaycal,!out)
    is_busday(a,weekmask,holidays,busdaycal,!out)

    allclose angle append argpartition argsort array_equal argwhere average bincount broadcast_shapes convolve copy
    corrcoef correlate count_nonzero cov cross delete diagflat diff digitize ediff1d extract flatnonzero gradient i0
    inner insert interp intersect1d isclose iscomplex iscomplexobj isin in1d isreal isrealobj isscalar
    iterable kron ndim nonzero packbits pad partition poly polyadd polydiv polyfit polymul polysub polyval
    ravel_multi_index repeat resize roll roots searchsorted setdiff1d setxor1d shape sinc size sort sort_complex
    take_along_axis tensordot tile trapezoid trapz tril triu tril_indices_from triu_indices_from union1d unique
    unique_all unique_counts unique_inverse unique_values unpackbits unravel_index unwrap vander vdot where
    diag_indices_from datetime_as_string datetime_data array_equiv can_cast common_type isdtype issubdtype
    min_scalar_type mintypecode(&typechars) promote_types result_type typename array2string array_repr array_str
    base_repr binary_repr format_float_positional format_float_scientific polyder(&p) polyint(&p) histogram(a,&bins)
    histogram2d(x,y,&bins) histogram_bin_edges(a,&bins)

    copyto(!dst) put(!a) place(!arr) putmask(!a) fill_diagonal(!a) put_along_axis(!arr)

    array(a,dtype,*,copy=&a) asarray(&a) asanyarray(&a) asarray_chkfinite(&a) ascontiguousarray(&a) asfortranarray(&a)
    asmatrix(&data) astype(x,dtype,*,copy=&x) require(&a) from_dlpack(&x) frombuffer(&buffer) atleast_1d(*&arys)
    atleast_2d(*&arys) atleast_3d(*&arys) broadcast_to(&array) hsplit(&ary) vsplit(&ary) dsplit(&ary) unstack(&x)
    diagonal(&a) diag(&v) expand_dims(&a) squeeze(&a) flip(&m) fliplr(&m) flipud(&m) rot90(&m) moveaxis(&a) rollaxis(&a)
    swapaxes(&a) transpose(&a) permute_dims(&a) matrix_transpose(&x) ravel(&a) reshape(&a) real(&val) imag(&val)
    real_if_close(&a) trim_zeros(&filt) ix_(*&args)

    apply_along_axis(@func1d) apply_over_axes(@func,&a) piecewise(x,condlist,@funclist) frompyfunc(@func)
"""
_JOINS = """
    stack(arrays,axis,!out) concatenate(arrays,axis,!out) concat(arrays,axis,!out) hstack vstack dstack column_stack
    row_stack block bmat meshgrid(*xi,copy=&xi) einsum(*&operands,!out) einsum_path select choose(a,choices,!out)
    lexsort broadcast_arrays(*&args) split(&ary) array_split(&ary) histogramdd(sample,&bins)
"""
_CREATES = """
    zeros ones empty full zeros_like ones_like empty_like full_like eye identity arange linspace logspace geomspace tri
    indices diag_indices tril_indices triu_indices bartlett blackman hamming hanning kaiser mask_indices(n,@mask_func)
    fromfunction(@function) fromiter fromstring
"""
_OUTSIDE = """
    fromfile fromregex genfromtxt loadtxt load save savetxt savez savez_compressed seterr seterrcall set_printoptions
    setbufsize printoptions geterr geterrcall get_printoptions getbufsize get_include info show_config show_runtime test
    nested_iters(!op) set_string_function
"""
_LINALG = """
    cholesky cond cross det eig eigh eigvals eigvalsh inv lstsq matmul matrix_norm matrix_power(&a) matrix_rank
    matrix_transpose(&x) diagonal(&x) norm outer pinv qr slogdet solve svd svdvals tensordot tensorinv tensorsolve trace
    vecdot vector_norm
"""
_FFT = """
    fft(a,n,axis,norm,!out) ifft(a,n,axis,norm,!out) rfft(a,n,axis,norm,!out) irfft(a,n,axis,norm,!out)
    hfft(a,n,axis,norm,!out) ihfft(a,n,axis,norm,!out) fft2(a,s,axes,norm,!out) ifft2(a,s,axes,norm,!out)
    rfft2(a,s,axes,norm,!out) irfft2(a,s,axes,norm,!out) fftn(&a,s,axes,norm,!out) ifftn(&a,s,axes,norm,!out)
    rfftn(a,s,axes,norm,!out) irfftn(a,s,axes,norm,!out) fftshift ifftshift
"""
DRAWS = """
    beta binomial bytes chisquare choice dirichlet exponential f gamma geometric gumbel hypergeometric laplace logistic
    lognormal logseries multinomial multivariate_normal negative_binomial noncentral_chisquare noncentral_f normal
    pareto permutation poisson power rand randint randn random_integers random_sample rayleigh shuffle(!x)
    standard_cauchy standard_t triangular uniform vonmises wald weibull zipf seed get_state set_state
"""
_RANDOM = f"""
    {DRAWS} default_rng random ranf sample standard_exponential standard_gamma standard_normal get_bit_generator
    set_bit_generator test
"""
TEXT = """
    capitalize center compare_chararrays count decode encode endswith equal expandtabs find greater greater_equal index
    join less less_equal ljust lower lstrip mod multiply not_equal partition replace rfind rindex rjust rpartition
    rsplit rstrip split splitlines startswith strip swapcase title translate upper zfill slice add isalnum isalpha
    isdecimal isdigit islower isnumeric isspace istitle isupper str_len array(obj,itemsize,copy=&obj) asarray(&obj)
"""
_MEMORY = "isfortran may_share_memory shares_memory"

TABLES = {
    np: {"computes": _FIRST, "joins": _JOINS, "creates": _CREATES, "outside": _OUTSIDE, "memory": _MEMORY},
    np.linalg: {"computes": _LINALG, "joins": "multi_dot(arrays,*,!out)", "outside": "test"},
    np.fft: {"computes": _FFT, "creates": "fftfreq rfftfreq", "outside": "test"},
    np.random: {"draws": _RANDOM},
    np.char: {"computes": TEXT},
    np.strings: {"computes": TEXT},
    stride_tricks: {"computes": "as_strided(&x) sliding_window_view(&x)"},
    array_utils: {"computes": "normalize_axis_index normalize_axis_tuple", "memory": "byte_bounds"},
    scimath: {"computes": "arccos arcsin arctanh log log10 log2 logn power sqrt"},
}
