// Matrix products over three semirings, row-major, for any size: C[i,j] = best over k of A[i,k] * B[k,j], where
//
//     maxplus     best is max, * is +,  zero is -inf    longest paths, Viterbi
//     minplus     best is min, * is +,  zero is +inf    shortest paths
//     maxmul      best is max, * is *,  zero is 0       most probable paths; for numbers that are not negative
//
// The zero of a semiring loses against every value in `best`, and its product with any value is zero. Integers have no
// infinity: their smallest value stands in for -inf, their largest for +inf. Overflow of other sums is not handled.
//
//     {maxplus,minplus,maxmul}_{f32,f64,i32,i64}            12 products
//     {maxplus,minplus,maxmul}_{f32,f64,i32,i64}_arg        12 products that also store the first best k
//     {maxplus,minplus,maxmul}_f32_batched                   3 products of many pairs, one for each blockIdx.z
//     backward_{a,b}_{f32,f64}                               4 gradients of maxplus and minplus, from the stored k
//
// Products run in blocks of 16 x 16 threads. One block computes a tile of C: 128 x 128 in the products of 32 bits
// without `_arg`, 64 x 64 in all others; `tile` in gemm_module.py has the same numbers.

typedef long long i64;

template <class T> struct limits;
template <> struct limits<float> {
    static __device__ float lowest() { return -__int_as_float(0x7f800000); }
    static __device__ float highest() { return __int_as_float(0x7f800000); }
};
template <> struct limits<double> {
    static __device__ double lowest() { return -__longlong_as_double(0x7ff0000000000000LL); }
    static __device__ double highest() { return __longlong_as_double(0x7ff0000000000000LL); }
};
template <> struct limits<int> {
    static __device__ int lowest() { return -2147483647 - 1; }
    static __device__ int highest() { return 2147483647; }
};
template <> struct limits<i64> {
    static __device__ i64 lowest() { return -9223372036854775807LL - 1; }
    static __device__ i64 highest() { return 9223372036854775807LL; }
};

template <class T> __device__ T plus(T a, T b, T) { return a + b; }  // inf + a is inf
__device__ int plus(int a, int b, int zero) { return a == zero || b == zero ? zero : a + b; }
__device__ i64 plus(i64 a, i64 b, i64 zero) { return a == zero || b == zero ? zero : a + b; }

template <class T> struct maxplus {
    static __device__ T zero() { return limits<T>::lowest(); }
    static __device__ T times(T a, T b) { return plus(a, b, zero()); }
    static __device__ bool is_better(T a, T b) { return a > b; }
};
template <class T> struct minplus {
    static __device__ T zero() { return limits<T>::highest(); }
    static __device__ T times(T a, T b) { return plus(a, b, zero()); }
    static __device__ bool is_better(T a, T b) { return a < b; }
};
template <class T> struct maxmul {
    static __device__ T zero() { return T(0); }
    static __device__ T times(T a, T b) { return a * b; }
    static __device__ bool is_better(T a, T b) { return a > b; }
};

constexpr int SIDE = 16;   // threads along each side of a block
constexpr int DEPTH = 16;  // columns of A and rows of B that are in shared memory at a time

// Compute one tile of C. Each thread keeps EACH x EACH elements of it in registers, SIDE apart in both directions, so
// that neighbouring threads read neighbouring words of shared memory and write neighbouring words of C.
template <class Ring, class T, int EACH, bool HAS_ARG>
__device__ void product(const T *a, const T *b, T *c, int *arg, int m, int n, int k)
{
    constexpr int TILE = SIDE * EACH;
    __shared__ T part_a[DEPTH][TILE + 1];  // transposed; the extra column avoids bank conflicts
    __shared__ T part_b[DEPTH][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y, thread = ty * SIDE + tx;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;

    T best[EACH][EACH];
    int best_k[HAS_ARG ? EACH : 1][HAS_ARG ? EACH : 1];
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            best[i][j] = Ring::zero();
            if (HAS_ARG) best_k[i][j] = 0;
        }

    for (int start = 0; start < k; start += DEPTH) {
#pragma unroll
        for (int at = 0; at < EACH; at++) {
            const int i = at * SIDE + thread / DEPTH, d = thread % DEPTH;
            const bool inside = row + i < m && start + d < k;
            part_a[d][i] = inside ? a[(i64)(row + i) * k + start + d] : Ring::zero();
        }
#pragma unroll
        for (int at = 0; at < EACH; at++) {
            const int flat = at * SIDE * SIDE + thread, d = flat / TILE, j = flat % TILE;
            const bool inside = start + d < k && column + j < n;
            part_b[d][j] = inside ? b[(i64)(start + d) * n + column + j] : Ring::zero();
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            T left[EACH], right[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) left[i] = part_a[d][i * SIDE + ty];
#pragma unroll
            for (int j = 0; j < EACH; j++) right[j] = part_b[d][j * SIDE + tx];
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    const T found = Ring::times(left[i], right[j]);
                    if (Ring::is_better(found, best[i][j])) {  // of equal values the first stays
                        best[i][j] = found;
                        if (HAS_ARG) best_k[i][j] = start + d;
                    }
                }
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int y = row + i * SIDE + ty, x = column + j * SIDE + tx;
            if (y < m && x < n) {
                c[(i64)y * n + x] = best[i][j];
                if (HAS_ARG) arg[(i64)y * n + x] = best_k[i][j];
            }
        }
}

#define PRODUCT(ring, name, T, each) \
    extern "C" __global__ void __launch_bounds__(SIDE * SIDE) \
    ring##_##name(const T *a, const T *b, T *c, int m, int n, int k) \
    { \
        product<ring<T>, T, each, false>(a, b, c, nullptr, m, n, k); \
    } \
    extern "C" __global__ void __launch_bounds__(SIDE * SIDE) \
    ring##_##name##_arg(const T *a, const T *b, T *c, int *arg, int m, int n, int k) \
    { \
        product<ring<T>, T, 4, true>(a, b, c, arg, m, n, k); \
    }

#define BATCHED(ring) \
    extern "C" __global__ void __launch_bounds__(SIDE * SIDE) \
    ring##_f32_batched(const float *a, const float *b, float *c, int m, int n, int k) \
    { \
        const i64 z = blockIdx.z; \
        product<ring<float>, float, 8, false>(a + z * m * k, b + z * k * n, c + z * m * n, nullptr, m, n, k); \
    }

#define RING(ring) \
    PRODUCT(ring, f32, float, 8) \
    PRODUCT(ring, f64, double, 4) \
    PRODUCT(ring, i32, int, 8) \
    PRODUCT(ring, i64, i64, 4) \
    BATCHED(ring)

RING(maxplus)
RING(minplus)
RING(maxmul)

// d_a[i,k] is the sum of d_c[i,j] over all j whose best k it was; d_b likewise. Each thread computes one element,
// without atomics, so the order of the sum is fixed.
#define BACKWARD(name, T) \
    extern "C" __global__ void backward_a_##name(const T *d_c, const int *arg, T *d_a, int m, int n, int k) \
    { \
        const int d = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y; \
        if (i >= m || d >= k) return; \
        T sum = 0; \
        for (int j = 0; j < n; j++) \
            if (arg[(i64)i * n + j] == d) sum += d_c[(i64)i * n + j]; \
        d_a[(i64)i * k + d] = sum; \
    } \
    extern "C" __global__ void backward_b_##name(const T *d_c, const int *arg, T *d_b, int m, int n, int k) \
    { \
        const int j = blockIdx.x * blockDim.x + threadIdx.x, d = blockIdx.y * blockDim.y + threadIdx.y; \
        if (d >= k || j >= n) return; \
        T sum = 0; \
        for (int i = 0; i < m; i++) \
            if (arg[(i64)i * n + j] == d) sum += d_c[(i64)i * n + j]; \
        d_b[(i64)d * n + j] = sum; \
    }

BACKWARD(f32, float)
BACKWARD(f64, double)
