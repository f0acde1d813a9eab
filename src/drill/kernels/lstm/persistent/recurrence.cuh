// One LSTM layer over all its time steps in one launch: what forward.cu and backward.cu share.
//
//     forward    gates_t = x_t + bias + W h_{t-1}         W (4H, H), rows by unit, then by gate i f g o
//     backward   dh_t    = dout_t + W^T dgates_{t+1}      Wt (H, 4H)
//
// Every block owns sixteen hidden units. A cluster of blocks shares the columns of its units' weights:
// each block keeps its part of them in registers for the whole launch. Its threads have three roles:
//
//     fetch      copy what other blocks computed a step ago to shared memory, as soon as it is there
//     multiply   it with the weights, and send the sums to the blocks that own the units
//     finish     the sums of the block's own units: gates and states, which go to the other blocks
//
// What the blocks send one another at every step, the new hidden state or the gradients of the
// gates, goes through L2 without any barrier: the words of the exchange are filled with a bit
// pattern that no conversion to bfloat16 produces, and a reader waits until none of it is left. They
// lie as the matrix instruction wants them: eight columns of a batch row, then the next row; then the
// next eight columns.
//
// Batch rows are worked on in groups: while the words of one travel, another is multiplied. An item
// is a group at a step.
//
// The compiler is given H (hidden units, padded), TILES (of eight batch rows, of a group), GROUPS
// and BACKWARD. layout.py counts the same blocks, threads and bytes.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short half;  // bfloat16: its bits alone matter here

constexpr int OWN = 16;                         // units of a block
constexpr int WARPGROUPS = H > 576 ? 2 : 1;     // that multiply, 64 rows each
constexpr int CLUSTER = (BACKWARD ? 4 : 1) * WARPGROUPS;
constexpr int COLUMNS = BACKWARD ? 4 * H : H;
constexpr int WRITTEN = COLUMNS / H * OWN;      // of them by a block
constexpr int SHARE = COLUMNS / CLUSTER;        // of them multiplied by a block
constexpr int STEPS = SHARE / 16;               // of the matrix instruction along its share
constexpr int PARTS = 4;                        // of its share: one a fetching warp
constexpr int THREADS = 128 * (WARPGROUPS + 2);
constexpr int SLOTS = 2;                        // for shares of items
constexpr int SLOT = SHARE * 8 * TILES * 2;     // bytes
constexpr int SENT = BACKWARD ? 32 : 128;       // threads whose sums go to one block
constexpr int SUMS = CLUSTER * SENT * TILES;    // float4 of an item: of each block, as its threads hold them
// A block may send the sums of a step when all have finished those of two steps before: the words
// it multiplied were made of sums of then, of blocks that had waited for everybody's words.
constexpr int SUM_SLOTS = 2 * GROUPS;
// Forward the sums of one warpgroup are those of its own block. They are stored there, and its four
// warps say when; even to itself a block sends more slowly.
constexpr int STAY = !BACKWARD;
// A large group has more words than registers can take on their way: then flags say when they are
// there, and they are copied in bulk.
constexpr bool LARGE = TILES > 3;
constexpr u32 EMPTY = 0xFFFFFFFFu;
constexpr u32 READY = 3;                        // a flag that was EMPTY and got one from each of four warps
constexpr u32 BAD = 0x7FFF7FFFu;                // a pair of NaN, or one
constexpr u32 ALL = 0xFFFFFFFFu;                // lanes
constexpr u32 PATIENCE = 3800;                  // milliseconds, about, without news before a launch gives up
constexpr int LOOK = 1024;                      // polls for words between two looks at the clock
constexpr int LOOK_ASIDE = 256;                 // polls for sums, which may sleep, before a look at `stalled`

static_assert(H % (16 * WARPGROUPS) == 0 && SHARE <= 576, "sizes do not fit");

__device__ __forceinline__ u32 load1(const void* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
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
__device__ __forceinline__ void store2(void* p, uint2 v) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" :: "l"(p), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void add1(u32* p) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" :: "l"(p) : "memory");
}
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
// Off by 5e-4 of the result at most, a quarter of what rounding to bfloat16 is; NaN stays NaN.
__device__ __forceinline__ float tanh_(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 1 / (1 + 2^(-x log2 e)). Not by tanh_: its error near 1 would be all there is of a closed gate. Right
// at both ends: where the power is infinite the quotient is 0; NaN stays NaN. Subnormal numbers are 0:
// else the compiler scales what goes in and what comes out.
__device__ __forceinline__ float sigmoid(float x) {
    float power, y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + power));
    return y;
}
__device__ __forceinline__ void add(float4& x, float4 y) { x.x += y.x; x.y += y.y; x.z += y.z; x.w += y.w; }
__device__ __forceinline__ u32 now() {
    u64 nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
    return nanoseconds >> 20;  // of 1.05 milliseconds
}

// -- shared memory and what is waited for there

extern __shared__ __align__(128) unsigned char memory[];  // (SLOTS, SLOT), (SUM_SLOTS, SUMS), kept, inputs
__shared__ __align__(8) u64 full[SLOTS][PARTS], empty[SLOTS], landed[PARTS], summed[SUM_SLOTS];
__shared__ volatile u32 hopeless;  // whether somebody in the block has given up

__device__ __forceinline__ u32 shared_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ float4* sums_of(int item) {
    return (float4*)(memory + SLOTS * SLOT) + item % SUM_SLOTS * SUMS;
}
// What those who finish keep from step to step.
__device__ __forceinline__ void* kept() { return memory + SLOTS * SLOT + SUM_SLOTS * SUMS * 16; }
// Sixteen bytes from memory to shared memory, while the thread goes on.
__device__ __forceinline__ void send_for(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(shared_of(to)), "l"(from) : "memory");
}
// For all that the thread has sent for.
__device__ __forceinline__ void wait_for_sent() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ u32 at_rank(u32 here, int rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    return there;
}
__device__ __forceinline__ void set_up(u64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_of(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(u64* barrier) {
    asm volatile("{.reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0];}" :: "r"(shared_of(barrier)) : "memory");
}
__device__ __forceinline__ void expect(u64* barrier, int bytes) {
    asm volatile("{.reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1;}"
                 :: "r"(shared_of(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool passed(u64* barrier, int round) {
    u32 done;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(shared_of(barrier)), "r"(round & 1) : "memory");
    return done;
}
// For what threads of the same block do, none of which waits for another block without an end.
__device__ __forceinline__ void wait(u64* barrier, int round) {
    while (!passed(barrier, round)) {}
}
// Four sums to a block of the cluster, whose barrier counts their bytes; addresses are of that block.
__device__ __forceinline__ void send(u32 to, const float* v, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];"
                 :: "r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier) : "memory");
}
// Four sums to the block itself, if they are to stay: by a predicate, as a branch that reads registers of
// the matrix instruction would make it wait after every step.
__device__ __forceinline__ void keep(u32 at, const float* v, bool stays) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p st.shared.v4.f32 [%0], {%1,%2,%3,%4};}"
                 :: "r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"((int)stays) : "memory");
}
// All threads of the cluster.
__device__ __forceinline__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// At the end: no block may leave while another still writes into its memory. Who has waited for all
// sums knows that none is on its way; who has not stays until they must have come.
__device__ __forceinline__ void leave() {
    meet();
    if (hopeless) __nanosleep(100000);
}
__device__ __forceinline__ void set_up_barriers() {
    if (threadIdx.x == 0) {
        hopeless = 0;
        for (int slot = 0; slot < SLOTS; ++slot) {
            for (int part = 0; part < PARTS; ++part) set_up(&full[slot][part], 1);
            set_up(&empty[slot], 4 * WARPGROUPS);
        }
        for (int part = 0; part < PARTS; ++part) set_up(&landed[part], 1);
        for (int slot = 0; slot < SUM_SLOTS; ++slot) set_up(&summed[slot], (CLUSTER > 1) + 4 * STAY);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    meet();  // only now every block of the cluster is there to be written to
}

// -- registers of a thread: weights need many, and all have a share of 64 K

__device__ __forceinline__ void take_registers_to_multiply() {
    if (WARPGROUPS == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    else if (LARGE) asm volatile("setmaxnreg.inc.sync.aligned.u32 192;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
}
__device__ __forceinline__ void leave_registers_to_finish() {
    if (WARPGROUPS == 2 && LARGE) asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
    else if (WARPGROUPS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
}
__device__ __forceinline__ void leave_registers_to_fetch() {
    if (LARGE) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    else asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
}

// -- what is worked on

// Batch rows of the launch, `size` to a group but the last.
struct Groups {
    int batch, size;
    __device__ __forceinline__ int first(int group) const { return group * size; }
    __device__ __forceinline__ int rows(int group) const { return min(size, batch - group * size); }
};

// A line of memory to L2, for a later step: what all steps of large groups read is more than L2 keeps.
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" :: "l"(p)); }

// The blocks' flags of a group at a step.
__device__ __forceinline__ u32* flags_of(u32* flags, int t, int group) {
    return flags + (t * GROUPS + group) * gridDim.x;
}
