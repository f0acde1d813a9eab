// Logits of a mixture's experts and what their softmax needs, in one pass, for Hopper GPUs.
//
//     E = exp(C W^T - c)    rounded, and the sums of its rows before that
//
// C (rows, DEPTH) are contexts with the ones of the bias, W (labels, DEPTH) has the bias appended, c
// is a number of the row's own: the logit of its target. The logits themselves are never written.
//
// A block has 128 rows at a time, 64 to each of two warpgroups, whose contexts stay in registers. A
// third warpgroup streams W through a ring of stages, LABELS labels x 32 columns each; the blocks of a
// cluster share that stream. The two take turns: while one multiplies, the other makes exponentials.
//
// W comes arranged, (tiles, DEPTH / 16, 2, LABELS / 8, 8 labels, 8 columns), core matrices as the
// matrix instruction reads them. Its columns are in the order in which a thread has those of C: see
// ``arrange``. Labels that pad the last tile have the logit -inf.
//
// The compiler is given DEPTH (a multiple of 32), CLUSTER and STAGES.

#include "../runtime/hopper.cuh"

constexpr int LABELS = 160;                  // of a tile
constexpr int OUTPUTS = LABELS / 2;          // of a thread: 64 x LABELS over 128 threads
constexpr int INNER = DEPTH / 32;            // stages of a tile
constexpr int STAGE_BYTES = LABELS * 64;     // 32 columns
constexpr int WARPGROUP = 128;
constexpr int THREADS = 3 * WARPGROUP;
constexpr int ROWS = 128;                    // of a block
constexpr int LINE = LABELS * 2 + 16;        // bytes of a row on its way out; no bank conflicts
constexpr int LINES_BYTES = ROWS * LINE;
constexpr float LOG2E = 1.4426950408889634f;

using Ring = RingOf<STAGES, STAGE_BYTES, CLUSTER>;

#define O(i) "+f"(d[4 * i]), "+f"(d[4 * i + 1]), "+f"(d[4 * i + 2]), "+f"(d[4 * i + 3])

__device__ __forceinline__ void store_line(void* to, u32 from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ float exp2_(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#define SUMS                                                                                              \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"  \
    "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,"    \
    "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,"    \
    "%75,%76,%77,%78,%79"
#define MULTIPLY(ADD)                                                                                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {" SUMS "}, {%80,%81,%82,%83}, "  \
                 "%84, " ADD ", 1, 1, 0;"                                                                 \
                 : O(0), O(1), O(2), O(3), O(4), O(5), O(6), O(7), O(8), O(9), O(10), O(11), O(12),       \
                   O(13), O(14), O(15), O(16), O(17), O(18), O(19)                                        \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b))
// d (64 x LABELS) (+)= a b^T, 16 columns of a and b.
template <bool ADD>
__device__ __forceinline__ void multiply(float (&d)[OUTPUTS], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    if (ADD) MULTIPLY("1");
    else MULTIPLY("0");
}
// Of the two warpgroups that multiply, one waits for its turn, the other gives it.
__device__ __forceinline__ void turn_wait(int warpgroup) {
    asm volatile("bar.sync %0, 256;" :: "r"(warpgroup + 1) : "memory");
}
__device__ __forceinline__ void turn_give(int warpgroup) {
    asm volatile("bar.arrive %0, 256;" :: "r"(warpgroup + 1) : "memory");
}

// All tiles of all groups of rows in a line, cut in as many equal parts as there are clusters. So the
// labels of a group are had by one cluster or by some that follow each other.
struct Share {
    i64 all, at, stop;
    int tiles, clusters, cluster;
    __device__ __forceinline__ Share(int rows, int tiles)
        : tiles(tiles), clusters(gridDim.x / CLUSTER), cluster(blockIdx.x / CLUSTER) {
        all = (i64)((rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS)) * tiles;
        at = all * cluster / clusters;
        stop = all * (cluster + 1) / clusters;
    }
    __device__ __forceinline__ bool left() const { return at < stop; }
    __device__ __forceinline__ int group() const { return (int)(at / tiles); }
    __device__ __forceinline__ int begin() const { return (int)(at % tiles); }
    __device__ __forceinline__ int end() const { return (int)min((i64)tiles, begin() + stop - at); }
    __device__ __forceinline__ int part() const {  // of its group
        return cluster - (int)((((i64)group() * tiles + 1) * clusters - 1) / all);
    }
    __device__ __forceinline__ void next() { at += end() - begin(); }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) exp_gemm(
    const u16* C,       // (rows, DEPTH)
    const char* W,      // arranged
    const float* c,     // (rows,)
    u16* E,             // (rows, width), written
    float* sums,        // (parts, rows), written: of the labels that a cluster has had
    int rows, int width, int tiles) {
    extern __shared__ __align__(128) char shared[];
    const u32 base = shared_address(shared);
    const u32 lines = base + STAGES * STAGE_BYTES;
    Ring ring(base, lines + LINES_BYTES);
    const u32 rank = rank_in_cluster();
    if (threadIdx.x == 0) ring.make_barriers(2 * WARPGROUP / 32);
    __syncthreads();
    cluster_sync();
    Share share(rows, tiles);
    if (threadIdx.x >= 2 * WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 2 * WARPGROUP) {
            for (; share.left(); share.next()) {
                const char* from = W + (i64)share.begin() * INNER * STAGE_BYTES;
                for (int i = (share.end() - share.begin()) * INNER; i > 0; --i, from += STAGE_BYTES, ring.next())
                    ring.fill(from, rank);
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warpgroup = threadIdx.x / WARPGROUP;
        const u32 line = lines + (warp * 16 + lane % 16) * LINE;  // whose store this lane starts
        const u32 matrices = line + lane / 16 * 16;
        if (warpgroup == 1) turn_give(0);
        for (; share.left(); share.next()) {
            const int begin = share.begin(), end = share.end();
            const i64 corner = ((i64)share.group() * CLUSTER + rank) * ROWS + warp * 16;
            const i64 low = corner + lane / 4, high = low + 8;
            const i64 own = corner + lane % 16;
            u32 a[INNER][8];
            {
                const uint4* from_low = (const uint4*)(C + (low < rows ? low : rows - 1) * DEPTH) + lane % 4;
                const uint4* from_high = (const uint4*)(C + (high < rows ? high : rows - 1) * DEPTH) + lane % 4;
#pragma unroll
                for (int i = 0; i < INNER; ++i) {
                    uint4 v = from_low[4 * i], w = from_high[4 * i];
                    a[i][0] = v.x, a[i][1] = w.x, a[i][2] = v.y, a[i][3] = w.y;
                    a[i][4] = v.z, a[i][5] = w.z, a[i][6] = v.w, a[i][7] = w.w;
                }
            }
            const float c_low = -LOG2E * c[low < rows ? low : rows - 1];
            const float c_high = -LOG2E * c[high < rows ? high : rows - 1];
            float sum_low = 0, sum_high = 0;
            for (int tile = begin; tile < end; ++tile) {
                float d[OUTPUTS];
                turn_wait(warpgroup);
                multiply_begin();
                int before = 0;
#pragma unroll
                for (int i = 0; i < INNER; ++i) {
                    const u64 b = descriptor(ring.filled(), LABELS * 16);
                    if (i == 0) multiply<false>(d, a[i][0], a[i][1], a[i][2], a[i][3], b);
                    else multiply<true>(d, a[i][0], a[i][1], a[i][2], a[i][3], b);
                    multiply<true>(d, a[i][4], a[i][5], a[i][6], a[i][7], b + (LABELS * 32 >> 4));
                    multiply_commit();
                    if (i) {
                        multiply_wait<1>();
                        ring.give_free(before);
                    }
                    before = ring.stage;
                    ring.next();
                }
                turn_give(1 - warpgroup);
                multiply_wait<0>();
                ring.give_free(before);
                asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the lines are free
                __syncwarp();
#pragma unroll
                for (int i = 0; i < OUTPUTS / 8; ++i) {
                    u32 v[4];
#pragma unroll
                    for (int s = 0; s < 2; ++s) {
                        const float* x = d + 8 * i + 4 * s;
                        float e0 = exp2_(fmaf(x[0], LOG2E, c_low)), e1 = exp2_(fmaf(x[1], LOG2E, c_low));
                        float e2 = exp2_(fmaf(x[2], LOG2E, c_high)), e3 = exp2_(fmaf(x[3], LOG2E, c_high));
                        sum_low += e0 + e1;
                        sum_high += e2 + e3;
                        v[2 * s] = pack(e0, e1), v[2 * s + 1] = pack(e2, e3);
                    }
                    store_matrices(matrices + i * 32, v);
                }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                const int left = min(LABELS, width - tile * LABELS);
                if (lane < 16 && own < rows) store_line(E + own * width + tile * LABELS, line, 2 * left);
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            }
#pragma unroll
            for (int s = 1; s < 4; s *= 2) {
                sum_low += __shfl_xor_sync(~0u, sum_low, s);
                sum_high += __shfl_xor_sync(~0u, sum_high, s);
            }
            if (lane % 4 == 0) {
                const i64 part = (i64)share.part() * rows;
                if (low < rows) sums[part + low] = sum_low;
                if (high < rows) sums[part + high] = sum_high;
            }
        }
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    cluster_sync();
}
