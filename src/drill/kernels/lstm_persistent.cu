// One LSTM layer over all its time steps in one launch, forward and backward.
//
// Every block keeps its slice of the recurrent weights in registers for the whole launch and owns a
// few hidden units. What the blocks must tell one another at every step, the new hidden state or the
// gradients of the gates, goes through L2 without any barrier: the buffers are filled with a bit
// pattern that no conversion to bfloat16 produces, and a reader waits until none of it is left.
//
//     forward    gates_t = x_t + bias + W h_{t-1}         W (4H, H), rows by unit, then by gate i f g o
//     backward   dh_t    = dout_t + W^T dgates_{t+1}      Wt (H, 4H)
//
// The compiler is given H (hidden units, padded), UNITS (per block), WARPS (per block), TILES (of
// eight batch rows) and BACKWARD. A warp holds KW = H / WARPS columns of its block's rows. In the
// backward pass a cluster of four blocks shares 4 * UNITS columns of W; each takes a quarter of
// the 4H gates and sends its partial sums to the block that owns the units.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = 4 * UNITS;       // rows of the block's slice of W or Wt
constexpr int MT = ROWS / 16;         // tiles of the matrix instruction along them
constexpr int KW = H / WARPS;         // columns of a warp
constexpr int KS = KW / 16;           // its steps along them
constexpr int PAIRS = KS / 2;         // of these, two at a time by 16-byte loads
constexpr int BATCH = 8 * TILES;      // batch rows with padding
constexpr int STRIDE = ROWS + 4;      // of partial sums in shared memory: no bank conflicts
constexpr int OWN = UNITS * BATCH;    // hidden states of the block
constexpr int PER = (OWN + THREADS - 1) / THREADS;
constexpr u32 EMPTY = 0xFFFFFFFFu;
constexpr u32 BAD = 0x7FFF7FFFu;      // a pair of NaN
constexpr u64 PATIENCE = 4000000000ull;  // nanoseconds without news before a launch gives up
constexpr int LOOK = 4096;            // polls between two looks at the clock
// Whether a lane of each warp waits for a first word before all of them read: fewer requests are in
// the way of the writers. Measured, it pays forward and not backward, where a warp has few writers.
constexpr bool WAIT_FIRST = !BACKWARD;

static_assert(H % (16 * WARPS) == 0 && ROWS % 16 == 0 && H % UNITS == 0, "sizes do not fit");

__device__ __forceinline__ u32 load1(const void* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint2 load2(const void* p) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint4 load4(const void* p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store1(void* p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void store2(void* p, u32 v, u32 w) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" :: "l"(p), "r"(v), "r"(w) : "memory");
}
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
__device__ __forceinline__ void multiply(float* c, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ float tanh_(float x) {
    float e = __expf(-2.0f * fabsf(x));  // right at both ends; NaN stays NaN
    return copysignf(__fdividef(1.0f - e, 1.0f + e), x);
}
__device__ __forceinline__ bool fresh(u32 v) { return v != EMPTY; }
__device__ __forceinline__ bool fresh(uint2 v) { return fresh(v.x) && fresh(v.y); }
__device__ __forceinline__ bool fresh(uint4 v) {
    return fresh(v.x) && fresh(v.y) && fresh(v.z) && fresh(v.w);
}

// Waits for words that another block writes. After PATIENCE it gives up: `stalled` is set for
// everybody, nobody waits any more, and NaN goes on instead of what never came.
struct Waiter {
    u32* stalled;
    bool dead;
    __device__ void one(const void* p) {
        if (dead) return;
        u64 start = 0;
        for (int polls = 1; !fresh(load1(p)); ++polls) {
            if (polls % LOOK) continue;
            u64 t = now();
            if (!start) start = t;
            if (load1(stalled) || t - start > PATIENCE) {
                store1(stalled, 1u);
                dead = true;
                return;
            }
        }
    }
    // Called once a round of reloading what was not there yet; false when there is no hope.
    __device__ __forceinline__ bool again(int& rounds, u64& start) {
        if (dead) return false;
        if (++rounds % LOOK) return true;
        u64 t = now();
        if (!start) start = t;
        if (load1(stalled) || t - start > PATIENCE) {
            store1(stalled, 1u);
            dead = true;
        }
        return !dead;
    }
};

// The block's rows of a matrix (rows, k) as operands of the matrix instruction. Within 32 columns
// thread q of four holds columns 8q to 8q+7, so that hidden states, read in the same order, need
// neither shared memory nor shuffles.
struct Slice {
    u32 a[MT][KS][4];
    __device__ __forceinline__ void load(const unsigned short* matrix, long long stride, int row0, int k0) {
        int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const unsigned short* low = matrix + (row0 + 16 * m + g) * stride + k0;
            const unsigned short* high = low + 8 * stride;
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                uint4 x = *(const uint4*)(low + 32 * p + 8 * q);
                uint4 y = *(const uint4*)(high + 32 * p + 8 * q);
                a[m][2 * p][0] = x.x; a[m][2 * p][1] = y.x; a[m][2 * p][2] = x.y; a[m][2 * p][3] = y.y;
                a[m][2 * p + 1][0] = x.z; a[m][2 * p + 1][1] = y.z;
                a[m][2 * p + 1][2] = x.w; a[m][2 * p + 1][3] = y.w;
            }
            if (KS % 2) {
                uint2 x = *(const uint2*)(low + 32 * PAIRS + 4 * q);
                uint2 y = *(const uint2*)(high + 32 * PAIRS + 4 * q);
                a[m][KS - 1][0] = x.x; a[m][KS - 1][1] = y.x; a[m][KS - 1][2] = x.y; a[m][KS - 1][3] = y.y;
            }
        }
    }
    // Partial sums over the warp's columns of (rows) x (batch), into sums[batch][STRIDE].
    // `from` points at the warp's first column of batch row 0.
    __device__ __forceinline__ void product(
        const unsigned short* from, long long stride, int batch, float* sums, Waiter& waiter) {
        int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
        if (WAIT_FIRST && lane == 0) waiter.one(from + (5 % batch) * stride);
        __syncwarp();
        uint4 v[TILES][PAIRS > 0 ? PAIRS : 1];
        uint2 w[TILES];
        const unsigned short* base = from + g * stride + 8 * q;
        const unsigned short* tail = from + g * stride + 32 * PAIRS + 4 * q;
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
            bool real = 8 * n + g < batch;
#pragma unroll
            for (int p = 0; p < PAIRS; ++p)
                v[n][p] = real ? load4(base + 8 * n * stride + 32 * p) : make_uint4(0, 0, 0, 0);
            if (KS % 2) w[n] = real ? load2(tail + 8 * n * stride) : make_uint2(0, 0);
        }
        int rounds = 0;
        u64 start = 0;
        for (bool stale = true; stale;) {
            stale = false;
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
#pragma unroll
                for (int p = 0; p < PAIRS; ++p) stale |= !fresh(v[n][p]);
                if (KS % 2) stale |= !fresh(w[n]);
            }
            if (!stale) break;
            bool hope = waiter.again(rounds, start);
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
#pragma unroll
                for (int p = 0; p < PAIRS; ++p)
                    if (!fresh(v[n][p]))
                        v[n][p] = hope ? load4(base + 8 * n * stride + 32 * p) : make_uint4(BAD, BAD, BAD, BAD);
                if (KS % 2 && !fresh(w[n]))
                    w[n] = hope ? load2(tail + 8 * n * stride) : make_uint2(BAD, BAD);
            }
        }
        float c[TILES][MT][4];  // independent sums side by side: the instruction's latency hides
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int m = 0; m < MT; ++m) c[n][m][0] = c[n][m][1] = c[n][m][2] = c[n][m][3] = 0.0f;
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) {
#pragma unroll
            for (int n = 0; n < TILES; ++n)
#pragma unroll
                for (int m = 0; m < MT; ++m) multiply(c[n][m], a[m][2 * p], v[n][p].x, v[n][p].y);
#pragma unroll
            for (int n = 0; n < TILES; ++n)
#pragma unroll
                for (int m = 0; m < MT; ++m) multiply(c[n][m], a[m][2 * p + 1], v[n][p].z, v[n][p].w);
        }
        if (KS % 2) {
#pragma unroll
            for (int n = 0; n < TILES; ++n)
#pragma unroll
                for (int m = 0; m < MT; ++m) multiply(c[n][m], a[m][KS - 1], w[n].x, w[n].y);
        }
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                float* low = sums + (8 * n + 2 * q) * STRIDE + 16 * m + g;
                low[0] = c[n][m][0]; low[STRIDE] = c[n][m][1];
                low[8] = c[n][m][2]; low[STRIDE + 8] = c[n][m][3];
            }
    }
};

__device__ __forceinline__ void add(float4& x, float4 y) { x.x += y.x; x.y += y.y; x.z += y.z; x.w += y.w; }

#if !BACKWARD

// gates (T, B, H, 4): in, what the input gives; out, the activations. h (T + 1, B, H) bfloat16 and
// c (T + 1, B, H): row 0 is the initial state, the other rows of h are EMPTY. Of the B rows of a step
// in memory a launch works on `batch`; the pointers are those of its first one.
extern "C" __global__ void __launch_bounds__(THREADS, 1) lstm_forward(
    const unsigned short* W, const float4* bias, float4* gates, unsigned short* h, float* c,
    int steps, int batch, int total, u32* stalled) {
    extern __shared__ float sums[];  // (2, WARPS, BATCH, STRIDE)
    int warp = threadIdx.x / 32, unit0 = blockIdx.x * UNITS;
    Slice slice;
    slice.load(W, H, 4 * unit0, warp * KW);
    Waiter waiter{stalled, false};
    float cell[PER];
    float4 b[PER];
    int unit[PER], row[PER];
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        int index = threadIdx.x + i * THREADS;
        unit[i] = index % UNITS;
        row[i] = index / UNITS;
        bool real = row[i] < batch;
        cell[i] = real ? c[(long long)row[i] * H + unit0 + unit[i]] : 0.0f;
        b[i] = real ? bias[unit0 + unit[i]] : make_float4(0, 0, 0, 0);
    }
    int used = batch * UNITS;  // of the OWN places
    float4 x[PER];
#pragma unroll
    for (int i = 0; i < PER; ++i)
        if (row[i] < batch) x[i] = gates[(long long)row[i] * H + unit0 + unit[i]];
    for (int t = 0; t < steps; ++t) {
        float* own = sums + (t % 2) * WARPS * BATCH * STRIDE;
        slice.product(h + (long long)t * total * H + warp * KW, H, batch, own + warp * BATCH * STRIDE, waiter);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            if (i * THREADS + 32 * warp >= used) break;  // the whole warp: the shuffle needs every lane
            int place = min(row[i], BATCH - 1);
            float4 s = b[i];
            add(s, x[i]);
#pragma unroll
            for (int w = 0; w < WARPS; ++w)
                add(s, *(const float4*)(own + (w * BATCH + place) * STRIDE + 4 * unit[i]));
            float in = sigmoid(s.x), forget = sigmoid(s.y), g = tanh_(s.z), out = sigmoid(s.w);
            cell[i] = forget * cell[i] + in * g;
            float hidden = out * tanh_(cell[i]);
            float other = __shfl_xor_sync(0xFFFFFFFFu, hidden, 1);
            if (row[i] < batch) {
                long long at = ((long long)t * total + row[i]) * H + unit0 + unit[i];
                long long next = at + (long long)total * H;
                if (unit[i] % 2 == 0) store1(h + next, pack(hidden, other));
                // what follows is on nobody's way
                gates[at] = make_float4(in, forget, g, out);
                c[next] = cell[i];
                if (t + 1 < steps) x[i] = gates[next];
            }
        }
    }
}

#else

__device__ __forceinline__ u32 shared_of(const void* p, int rank) {
    u32 here = (u32)__cvta_generic_to_shared(p), there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    return there;
}
__device__ __forceinline__ void store_remote(u32 p, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};"
                 :: "r"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ __forceinline__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// gates (T, B, H, 4): the activations. c (T + 1, B, H). dout (T, B, H) bfloat16. dgates (T, B, H, 4)
// bfloat16, EMPTY. dc (B, H): in, the gradient of the final cell; out, that of the initial one.
// dbias (B, H, 4): sums of dgates over the steps, before they are rounded.
extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(4, 1, 1) lstm_backward(
    const unsigned short* Wt, const float4* gates, const float* c, const unsigned short* dout,
    unsigned short* dgates, float* dc, float4* dbias, int steps, int batch, int total, u32* stalled) {
    extern __shared__ float sums[];               // (WARPS, BATCH, STRIDE), then received
    float* received = sums + WARPS * BATCH * STRIDE;  // (2, 4, BATCH, UNITS)
    constexpr int RECEIVED = 4 * BATCH * UNITS;
    int warp = threadIdx.x / 32, rank = blockIdx.x % 4;
    int unit0 = blockIdx.x * UNITS;               // its own units; the cluster's begin at rank 0's
    Slice slice;
    slice.load(Wt, 4 * H, (blockIdx.x - rank) * UNITS, rank * H + warp * KW);
    Waiter waiter{stalled, false};
    float dcell[PER];
    float4 db[PER];
    int unit[PER], row[PER];
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        int index = threadIdx.x + i * THREADS;
        unit[i] = index % UNITS;
        row[i] = index / UNITS;
        bool real = row[i] < batch;
        dcell[i] = real ? dc[(long long)row[i] * H + unit0 + unit[i]] : 0.0f;
        db[i] = make_float4(0, 0, 0, 0);
    }
    meet();  // only now every block of the cluster is there to be written to
    float4 gate[PER];
    float now_[PER], before[PER], d[PER];
    auto fetch = [&](int t) {
#pragma unroll
        for (int i = 0; i < PER; ++i)
            if (row[i] < batch) {
                long long at = ((long long)t * total + row[i]) * H + unit0 + unit[i];
                gate[i] = gates[at];
                before[i] = c[at];
                now_[i] = c[at + (long long)total * H];
                d[i] = __uint_as_float((u32)dout[at] << 16);
            }
    };
    fetch(steps - 1);
    for (int t = steps - 1; t >= 0; --t) {
        if (t < steps - 1) {
            float* into = received + (t % 2) * RECEIVED;
            slice.product(dgates + (long long)(t + 1) * total * 4 * H + rank * H + warp * KW, 4 * H, batch,
                          sums + warp * BATCH * STRIDE, waiter);
            __syncthreads();
            // four columns at a time: UNITS / 4 of them belong to each block of the cluster
            for (int index = threadIdx.x; index < batch * UNITS; index += THREADS) {
                int quad = index % UNITS, r = index / UNITS;
                float4 s = make_float4(0, 0, 0, 0);
#pragma unroll
                for (int w = 0; w < WARPS; ++w)
                    add(s, *(const float4*)(sums + (w * BATCH + r) * STRIDE + 4 * quad));
                int owner = quad / (UNITS / 4);
                store_remote(shared_of(into + (rank * BATCH + r) * UNITS + 4 * (quad % (UNITS / 4)), owner), s);
            }
            meet();
#pragma unroll
            for (int i = 0; i < PER; ++i)
                if (row[i] < batch) {
#pragma unroll
                    for (int from = 0; from < 4; ++from)
                        d[i] += into[(from * BATCH + row[i]) * UNITS + unit[i]];
                }
        }
#pragma unroll
        for (int i = 0; i < PER; ++i)
            if (row[i] < batch) {
                float4 a = gate[i];
                float tc = tanh_(now_[i]);
                float dcl = dcell[i] + d[i] * a.w * (1.0f - tc * tc);
                float4 g = make_float4(dcl * a.z * a.x * (1.0f - a.x), dcl * before[i] * a.y * (1.0f - a.y),
                                       dcl * a.x * (1.0f - a.z * a.z), d[i] * tc * a.w * (1.0f - a.w));
                long long at = (((long long)t * total + row[i]) * H + unit0 + unit[i]) * 4;
                store2(dgates + at, pack(g.x, g.y), pack(g.z, g.w));
                dcell[i] = dcl * a.y;
                add(db[i], g);
            }
        if (t > 0) fetch(t - 1);  // on nobody's way
    }
#pragma unroll
    for (int i = 0; i < PER; ++i)
        if (row[i] < batch) {
            long long at = (long long)row[i] * H + unit0 + unit[i];
            dc[at] = dcell[i];
            dbias[at] = db[i];
        }
    meet();  // no block may leave while another still writes into its memory
}

#endif
