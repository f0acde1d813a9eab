// Multiply: one or two warpgroups, 64 rows of weights each.

// d (64, 8 TILES) += a (64, 16) b (16, 8 TILES): b is described by two words, its place and its strides.
__device__ __forceinline__ void multiply(float (&d)[4 * TILES], const u32 (&a)[4], u32 place, u32 strides, int sum) {
#define OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(place), "r"(strides), "r"(sum)
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MULTIPLY(columns, sums, a0, a1, a2, a3, low, high, sum) \
    "{.reg .pred p; .reg .b64 b; setp.ne.b32 p, " sum ", 0; mov.b64 b, {" low ", " high "};\n" \
    "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" sums "}, " \
    "{" a0 "," a1 "," a2 "," a3 "}, b, p, 1, 1, 0;}"
#define S1 "%0,%1,%2,%3"
#define S2 S1 ",%4,%5,%6,%7"
#define S3 S2 ",%8,%9,%10,%11"
#define S4 S3 ",%12,%13,%14,%15"
#define S5 S4 ",%16,%17,%18,%19"
#if TILES == 1
    asm volatile(MULTIPLY("8", S1, "%4", "%5", "%6", "%7", "%8", "%9", "%10") : FOUR(0) : OPERANDS);
#elif TILES == 2
    asm volatile(MULTIPLY("16", S2, "%8", "%9", "%10", "%11", "%12", "%13", "%14") : FOUR(0), FOUR(4) : OPERANDS);
#elif TILES == 3
    asm volatile(MULTIPLY("24", S3, "%12", "%13", "%14", "%15", "%16", "%17", "%18")
                 : FOUR(0), FOUR(4), FOUR(8) : OPERANDS);
#elif TILES == 4
    asm volatile(MULTIPLY("32", S4, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
                 : FOUR(0), FOUR(4), FOUR(8), FOUR(12) : OPERANDS);
#else
    asm volatile(MULTIPLY("40", S5, "%20", "%21", "%22", "%23", "%24", "%25", "%26")
                 : FOUR(0), FOUR(4), FOUR(8), FOUR(12), FOUR(16) : OPERANDS);
#endif
}

// The weights of a warpgroup in the block's share of the columns. A thread holds those of two rows,
// eight apart in its warp's sixteen, and of columns 2q and 2q + 1 of every eight.
struct Slice {
    u32 a[STEPS][4];

    __device__ __forceinline__ void load(const half* low, const half* high, bool real) {
        int q = threadIdx.x % 4;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            a[s][0] = real ? *(const u32*)(low + 16 * s + 2 * q) : 0u;
            a[s][1] = real ? *(const u32*)(high + 16 * s + 2 * q) : 0u;
            a[s][2] = real ? *(const u32*)(low + 16 * s + 8 + 2 * q) : 0u;
            a[s][3] = real ? *(const u32*)(high + 16 * s + 8 + 2 * q) : 0u;
        }
    }

    // Sums over the block's share: d[4 j + ..] are those of batch rows 8 j + 2 q and the next one,
    // of the thread's first row of weights, then of its second. False where they are of no use.
    __device__ __forceinline__ bool product(float (&d)[4 * TILES], int item, int rows) {
        int slot = item % SLOTS;
        // In units of 16 bytes: the place; above it, how far the next eight columns are; and, in the
        // other word, the next eight rows. The cluster's rank is in an address's upper bits.
        u32 place = (shared_of(memory) + slot * SLOT & 0x3FFFF) >> 4 | rows << 16, strides = 8;
        wait(&full[slot][0], item / SLOTS);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
#pragma unroll
            for (int part = 1; part < PARTS; ++part)
                if (s == part * STEPS / PARTS) wait(&full[slot][part], item / SLOTS);
            multiply(d, a[s], place, strides, s > 0);
            place += 2 * rows;
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        bool useful = !hopeless;  // who gives up says so before the words are there
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 4 * TILES; ++i) asm volatile("" : "+f"(d[i]) :: "memory");  // not before the wait
        if (threadIdx.x % 32 == 0) arrive(&empty[slot]);
        return useful;
    }

    // Products of all items, to the blocks that own the rows: forward a block a warpgroup, backward a
    // block a warp.
    __device__ __forceinline__ void send_products(int items, Groups groups) {
        int rank = blockIdx.x % CLUSTER, owner = threadIdx.x / SENT, q = threadIdx.x % 4;
        bool owned = (blockIdx.x - rank + owner) * OWN < H;
        for (int item = 0; item < items; ++item) {
            int rows = groups.rows(item % GROUPS);
            float d[4 * TILES];
            bool useful = product(d, item, rows);
            float4* sums = sums_of(item) + rank * TILES * SENT + threadIdx.x % SENT;
            u64* barrier = &summed[item % SUM_SLOTS];
            const bool stays = STAY && (CLUSTER == 1 || owner == rank);
            u32 here = shared_of(sums), there = at_rank(here, owner), theirs = at_rank(shared_of(barrier), owner);
#pragma unroll
            for (int j = 0; j < TILES; ++j)
                if (useful && owned && 8 * j + 2 * q < rows && !stays) send(there + j * SENT * 16, d + 4 * j, theirs);
            if (STAY) {
#pragma unroll
                for (int j = 0; j < TILES; ++j) keep(here + j * SENT * 16, d + 4 * j, stays);
                __syncwarp();
                if (useful && stays && threadIdx.x % 32 == 0) arrive(barrier);
            }
        }
    }
};

// For those who finish them; one of their threads is the `first`. False when the launch has given up:
// what is missing will not be sent.
__device__ __forceinline__ bool wait_for_sums(int item, int rows, bool first, const u32* stalled) {
    u64* barrier = &summed[item % SUM_SLOTS];
    if (hopeless) return false;
    if (CLUSTER > 1 && first) expect(barrier, (CLUSTER - STAY) * SENT / 4 * ((rows + 1) / 2) * 16);
    for (int polls = 1; !passed(barrier, item / SUM_SLOTS); ++polls)
        if (polls % LOOK_ASIDE == 0 && load1(stalled)) {
            hopeless = 1;
            return false;
        }
    return true;
}
