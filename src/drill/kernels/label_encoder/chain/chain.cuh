// What both passes of the label encoder's chain of maps share: all maps in one launch, for Hopper GPUs.
//
//     forward    P_i = X_i U_i^T + b_i    Y_i = act(P_i) [dropped] [+ E]    X_{i+1} = Y_i [dropped]
//     backward   dX_i = dP_i U_i          G_i = dX_i [dropped]              dP_{i-1} = G_i act'(P_{i-1})
//
// A block carries ROWS labels through all maps. What it multiplies lies in shared memory; two
// warpgroups hold the sums of 64 labels each in registers, a third streams U through a ring of
// stages. The blocks of a cluster share that stream: each fetches a part of every stage for all.
// A product is rounded into the place of what was multiplied. What comes between two products goes
// through it there, in the order of the labels in memory: by columns, as the sums lie in registers,
// the same accesses to E and the masks take three times as long.
//
// Shared memory is in core matrices of 8 rows x 16 bytes, 128 bytes each, as the matrix instruction
// reads them without swizzle: X by [columns / 8][rows / 8], a stage of U by [2][rows / 8].
//
// The compiler is given WIDTH (d, a multiple of 8), MAPS, ACTIVATION, MASK_IN, MASK_OUT, RESIDUAL,
// NARROW (whether E is bfloat16), CLUSTER and STAGES; and numbers that the text of an instruction
// spells out: COLUMNS of a product's half, OUTPUTS a thread has of it, QUARTER of them, FIRST and
// SECOND operand after them.

#include "../../runtime/hopper.cuh"

constexpr int PADDED = (WIDTH + 15) / 16 * 16;
constexpr int ROWS = 128;                  // labels of a block
constexpr int GROUPS = PADDED / 8;         // of eight columns
constexpr int HALF = GROUPS / 2;           // of an instruction: half the columns
constexpr int INNER = PADDED / 16;         // steps of a map, and stages that it takes
constexpr int STAGE_BYTES = PADDED * 32;   // 16 columns of U
constexpr int COLUMN = ROWS * 16 + 16;     // bytes from eight columns of X to the next; no bank conflicts
constexpr int X_BYTES = (GROUPS * COLUMN + 127) / 128 * 128;
constexpr int VECTORS = WIDTH / 8;         // of eight entries in a row
constexpr int ONES = 16;                   // columns of ones behind X, as the host wants them
constexpr int WARPGROUP = 128;
constexpr int THREADS = 3 * WARPGROUP;
constexpr bool MASK = MASK_IN || MASK_OUT;

constexpr int SIGMOID = 1, RELU = 2, TANH = 3, GELU = 4, SILU = 5;
constexpr int KEPT = ACTIVATION == RELU ? 1 : 16;  // bytes of a vector of P that backward needs

static_assert(WIDTH % 8 == 0 && OUTPUTS == PADDED / 4 && COLUMNS == PADDED / 2, "sizes do not fit");

// Names of the first 4, 8, .. operands, and the operands.
#define STRING_(x) #x
#define STRING(x) STRING_(x)
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define O(i) "+f"(c[4 * i]), "+f"(c[4 * i + 1]), "+f"(c[4 * i + 2]), "+f"(c[4 * i + 3])
#define S1 "%0,%1,%2,%3"
#define S2 S1 ",%4,%5,%6,%7"
#define S3 S2 ",%8,%9,%10,%11"
#define S4 S3 ",%12,%13,%14,%15"
#define S5 S4 ",%16,%17,%18,%19"
#define S6 S5 ",%20,%21,%22,%23"
#define S7 S6 ",%24,%25,%26,%27"
#define S8 S7 ",%28,%29,%30,%31"
#define S9 S8 ",%32,%33,%34,%35"
#define S10 S9 ",%36,%37,%38,%39"
#define S11 S10 ",%40,%41,%42,%43"
#define S12 S11 ",%44,%45,%46,%47"
#define S13 S12 ",%48,%49,%50,%51"
#define S14 S13 ",%52,%53,%54,%55"
#define S15 S14 ",%56,%57,%58,%59"
#define S16 S15 ",%60,%61,%62,%63"
#define S17 S16 ",%64,%65,%66,%67"
#define S18 S17 ",%68,%69,%70,%71"
#define S19 S18 ",%72,%73,%74,%75"
#define S20 S19 ",%76,%77,%78,%79"
#define S21 S20 ",%80,%81,%82,%83"
#define S22 S21 ",%84,%85,%86,%87"
#define S23 S22 ",%88,%89,%90,%91"
#define S24 S23 ",%92,%93,%94,%95"
#define S25 S24 ",%96,%97,%98,%99"
#define O1 O(0)
#define O2 O1, O(1)
#define O3 O2, O(2)
#define O4 O3, O(3)
#define O5 O4, O(4)
#define O6 O5, O(5)
#define O7 O6, O(6)
#define O8 O7, O(7)
#define O9 O8, O(8)
#define O10 O9, O(9)
#define O11 O10, O(10)
#define O12 O11, O(11)
#define O13 O12, O(12)
#define O14 O13, O(13)
#define O15 O14, O(14)
#define O16 O15, O(15)
#define O17 O16, O(16)
#define O18 O17, O(17)
#define O19 O18, O(18)
#define O20 O19, O(19)
#define O21 O20, O(20)
#define O22 O21, O(21)
#define O23 O22, O(22)
#define O24 O23, O(23)
#define O25 O24, O(24)

// ---- hardware instructions: see also hopper.cuh

__device__ __forceinline__ void warpgroup_sync(int warpgroup) {
    asm volatile("bar.sync %0, 128;" :: "r"(warpgroup + 1) : "memory");
}
// c (64 x PADDED / 2) += a b^T, 16 columns of a and b.
__device__ __forceinline__ void multiply(float (&c)[OUTPUTS], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n" STRING(COLUMNS) "k16.f32.bf16.bf16 {" JOIN(S, QUARTER) "}, %"
        STRING(FIRST) ", %" STRING(SECOND) ", 1, 1, 1, 0, 0;"
        : JOIN(O, QUARTER) : "l"(a), "l"(b));
}
__device__ __forceinline__ float low_of(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high_of(u32 v) { return __uint_as_float(v & 0xFFFF0000u); }

// ---- activations

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ float tanh_(float x) {
    float e = __expf(-2.0f * fabsf(x));  // right at both ends; NaN stays NaN
    return copysignf(__fdividef(1.0f - e, 1.0f + e), x);
}
__device__ __forceinline__ float activate(float x) {
    if (ACTIVATION == SIGMOID) return sigmoid(x);
    if (ACTIVATION == TANH) return tanh_(x);
    if (ACTIVATION == GELU) return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    if (ACTIVATION == SILU) return x * sigmoid(x);
    return x;
}
__device__ __forceinline__ float slope(float x) {
    if (ACTIVATION == SIGMOID) { float y = sigmoid(x); return y * (1.0f - y); }
    if (ACTIVATION == TANH) { float y = tanh_(x); return 1.0f - y * y; }
    if (ACTIVATION == SILU) { float y = sigmoid(x); return y * (1.0f + x * (1.0f - y)); }
    if (ACTIVATION == GELU)
        return 0.5f * (1.0f + erff(x * 0.7071067811865476f)) + x * __expf(-0.5f * x * x) * 0.3989422804014327f;
    return 1.0f;
}

// ---- the labels of a block

struct Labels {
    const unsigned char* bits;  // (MAPS, labels, VECTORS), see KeptBits
    float scale;
    int labels;
};

// Where a thread stands between two products. A warp goes through its 16 rows as they lie in memory,
// 32 vectors of eight entries a step: a thread has number 32 step + lane of them. The last tile
// begins early enough to be whole: some labels are encoded twice, to the same bits.
struct Place {
    int warpgroup, lane;
    i64 label;     // the first of the warp
    u32 shared;    // its row
    u32 matrices;  // what the thread gives as its lane's address in ``drain``
    __device__ __forceinline__ Place(int tile, int labels, u32 X) {
        int warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        warpgroup = threadIdx.x / WARPGROUP;
        label = min(tile * ROWS, labels - ROWS) + warp * 16;
        shared = X + warp * 256;
        matrices = shared + lane / 16 * COLUMN + lane % 16 * 16;
    }
    // Anew for each pass over the rows: kept from one to the next, what follows from it would take
    // more registers than it saves work.
    __device__ __forceinline__ void forget() { asm volatile("" : "+r"(lane)); }
    // In a last step that is not whole several lanes have the last vector. The first of them `writes`
    // it: what is changed in place must not be read by one after another has written it.
    __device__ __forceinline__ bool writes(int step) const {
        return 32 * step + 31 < 16 * VECTORS || 32 * step + lane < 16 * VECTORS;
    }
    __device__ __forceinline__ int vector(int step) const {
        return 32 * step + 31 < 16 * VECTORS ? 32 * step + lane : min(32 * step + lane, 16 * VECTORS - 1);
    }
    __device__ __forceinline__ u32 in_shared(int step) const {
        int row = vector(step) / VECTORS, group = vector(step) % VECTORS;
        return shared + group * COLUMN + row * 16;
    }
};

__device__ __forceinline__ uint4 shared_load(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ void shared_store(u32 at, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void stream_store(void* at, uint4 v) {  // not to be read soon
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void unpack(float (&v)[8], uint4 w) {
    v[0] = low_of(w.x), v[1] = high_of(w.x), v[2] = low_of(w.y), v[3] = high_of(w.y);
    v[4] = low_of(w.z), v[5] = high_of(w.z), v[6] = low_of(w.w), v[7] = high_of(w.w);
}
// The sums of a warp's labels, rounded, into the place of what was multiplied. Columns of padding get
// zeros, not their sums: NaN times the zeros of U is NaN, and the next tile would multiply it.
__device__ __forceinline__ void drain(const float (&c)[2][OUTPUTS], const Place& p) {
#pragma unroll
    for (int step = 0; step < INNER; ++step) {
        u32 v[4];
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const int group = 2 * step + s;
            const float* sum = &c[group / HALF][4 * (group % HALF)];
            const bool real = 8 * group < WIDTH;
            v[2 * s] = real ? pack(sum[0], sum[1]) : 0, v[2 * s + 1] = real ? pack(sum[2], sum[3]) : 0;
        }
        store_matrices(p.matrices + step * 2 * COLUMN, v);
    }
    __syncwarp();
}

__device__ __forceinline__ const unsigned char* bits_of(const Labels& l, const Place& p, int map) {
    return l.bits + ((i64)map * l.labels + p.label) * VECTORS;
}
// Times the scale or 0, so that NaN stays. Four bits are spread to four bytes, in each one of an
// exponent: as the highest byte of a float it makes that 2 or 0. `all` keeps whatever the bits say.
__device__ __forceinline__ void drop(float (&v)[8], u32 bits, float half_scale, u32 all) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        u32 twos = (bits >> 4 * half & 15) * 0x08102040u & 0x40404040u | all;
#pragma unroll
        for (int e = 0; e < 4; ++e)
            v[4 * half + e] *= __uint_as_float(__byte_perm(twos, 0, 0x0444 | e << 12)) * half_scale;
    }
}
// Which of eight numbers, none of them negative, are positive: bit 7 - i for the second of pair i, bit
// 3 - i for the first.
__device__ __forceinline__ u32 positive(uint4 v) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
    u32 found = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) found |= (words[i] + 0x7FFF7FFFu & 0x80008000u) >> i;
    return found >> 24 | found >> 12 & 15;
}
__device__ __forceinline__ u32 relu(u32 v) {
    u32 y;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(v), "r"(0));
    return y;
}

// 32 vectors of a warp's labels from shared memory to rows `stride` apart.
__device__ __forceinline__ void copy_out(Place p, int step, u16* to, int stride, bool ones) {
    p.forget();
    int row = p.vector(step) / VECTORS, group = p.vector(step) % VECTORS;
    uint4 v = shared_load(p.in_shared(step));
    u16* line = to + (p.label + row) * stride + 8 * group;
    stream_store(line, v);
    if (ones && group < ONES / 8) {
        const u32 one = 0x3F803F80u;
        stream_store(line + WIDTH, make_uint4(one, one, one, one));
    }
}

// Zeros behind the labels of `planes` planes of `plane` rows, by the warpgroup that has the least to do.
__device__ __forceinline__ void clear_rows(u16* to, int planes, int labels, int plane, int stride) {
    if (blockIdx.x || threadIdx.x < 2 * WARPGROUP) return;
    const int vectors = (plane - labels) * stride / 8;
#pragma unroll 1
    for (int i = threadIdx.x - 2 * WARPGROUP; i < planes * vectors; i += WARPGROUP) {
        u16* line = to + ((i64)(i / vectors) * plane + labels) * stride;
        *(uint4*)(line + i % vectors * 8) = make_uint4(0, 0, 0, 0);
    }
}

// ---- the stream of U

using Ring = RingOf<STAGES, STAGE_BYTES, CLUSTER>;

// U (maps, INNER, 2, GROUPS, 8, 8): every stage of every map of every tile of this block.
__device__ __forceinline__ void stream(Ring ring, const char* U, int tiles, bool backward) {
    u32 rank = rank_in_cluster();
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        for (int turn = 0; turn < MAPS; ++turn) {
            const char* from = U + (i64)(backward ? MAPS - 1 - turn : turn) * INNER * STAGE_BYTES;
            for (int step = 0; step < INNER; ++step, ring.next()) ring.fill(from + step * STAGE_BYTES, rank);
        }
    }
}

// c += X U^T of one map; meanwhile X goes out.
__device__ __forceinline__ void product(
    float (&c)[2][OUTPUTS], u32 X, Ring& ring, const Place& p, u16* out, int stride, bool ones) {
    u64 a = descriptor(X + p.warpgroup * 1024, COLUMN);
    int before = 0;
#pragma unroll 1
    for (int step = 0; step < INNER; ++step) {
        u64 b = descriptor(ring.filled(), PADDED * 16);
        u64 at = a + (u64)(step * (2 * COLUMN >> 4));
        multiply_begin();
        multiply(c[0], at, b);
        multiply(c[1], at, b + (u64)(HALF * (128 >> 4)));
        multiply_commit();
        if (out) copy_out(p, step, out, stride, ones);
        if (step) {
            multiply_wait<1>();
            ring.give_free(before);
        }
        before = ring.stage;
        ring.next();
    }
    multiply_wait<0>();
    ring.give_free(before);
}

__device__ __forceinline__ void shared_is_written(int warpgroup) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // by threads, for the products
    warpgroup_sync(warpgroup);
}

// Barriers of an empty ring, then the third warpgroup streams; returns whether this one multiplies.
// Those that do get the registers of the one that does not. A branch after their work, or a few more
// values alive in it, and ptxas gives up on that (C7512): the products are then serialised.
__device__ __forceinline__ bool divide_work(const Ring& ring, const char* U, int tiles, bool backward) {
    if (threadIdx.x == 0) ring.make_barriers(2 * WARPGROUP / 32);
    if (PADDED > WIDTH && threadIdx.x < ROWS)  // columns that are multiplied and stay zero
        shared_store(ring.stages - X_BYTES + (GROUPS - 1) * COLUMN + threadIdx.x * 16, make_uint4(0, 0, 0, 0));
    __syncthreads();
    cluster_sync();
    if (threadIdx.x >= 2 * WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 2 * WARPGROUP) stream(ring, U, tiles, backward);
        __syncwarp();
        return false;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    return true;
}
