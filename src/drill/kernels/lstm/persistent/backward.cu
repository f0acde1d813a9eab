// One LSTM layer backward: see recurrence.cuh.
//
// gates (T, B, H, 4): the activations. c (T + 1, B, H). dout (T, B, H) bfloat16. dgates (T, B, H, 4)
// bfloat16. dc (B, H): in, the gradient of the final cell; out, that of the initial one. dbias
// (B, H, 4): sums of dgates over the steps, before they are rounded. exchange (T, B 4H): the words of
// dgates, by group (4H / 8, rows, 8), all EMPTY, as are the flags (T, groups, blocks). The pointers
// are those of the first step of the launch: `later` is 1 where another launch has worked on the steps
// after its last, which left dgates of the next step, dc and dbias; `earlier` is 1 where another will on
// those before.
//
// A warp's sixteen rows of Wt are the units of one block of the cluster. Where units do not fill the
// last cluster, the others' weights are zero, and blocks without units finish nothing.

#include "recurrence.cuh"
#include "fetch.cuh"
#include "multiply.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) lstm_backward(
    const half* Wt, const float4* gates, const float* c, const half* dout, half* exchange, u32* flags,
    half* dgates, float* dc, float4* dbias, int steps, int batch, int size, u32* stalled,
    int earlier, int later) {
    Groups groups{batch, size};
    int role = __shfl_sync(ALL, threadIdx.x / 128, 0), rank = blockIdx.x % CLUSTER;
    const long long step = (long long)batch * H;
    set_up_barriers();
    if (role < WARPGROUPS) {
        take_registers_to_multiply();
        Slice slice;
        int unit = (blockIdx.x - rank) * OWN + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        const half* low = Wt + (long long)unit * COLUMNS + rank * SHARE;
        slice.load(low, low + 8 * COLUMNS, unit < H);
        slice.send_products((steps - 1 + later) * GROUPS, groups);
    } else if (role == WARPGROUPS) {
        leave_registers_to_finish();
        if (blockIdx.x * OWN >= H) steps = groups.batch = 0;
        // Four neighbours take what one lane of the matrix instruction held: two units, two rows.
        int thread = threadIdx.x % 128, piece = thread / 4, corner = thread % 4;
        int unit = blockIdx.x * OWN + piece / 4 + 8 * (corner / 2), row0 = 2 * (piece % 4) + corner % 2;
        float4* db = (float4*)kept() + thread;  // (GROUPS, TILES, 128)
        float* dcell = (float*)((float4*)kept() + GROUPS * TILES * 128) + thread;
        for (int n = 0; n < GROUPS; ++n)
            for (int j = 0; j < TILES; ++j)
                if (row0 + 8 * j < groups.rows(n)) {
                    int at = (groups.first(n) + row0 + 8 * j) * H + unit;
                    db[(n * TILES + j) * 128] = later ? dbias[at] : make_float4(0, 0, 0, 0);
                    dcell[(n * TILES + j) * 128] = dc[at];
                }
        float4 gate[TILES];
        float after[TILES], before[TILES], d[TILES];
        auto fetch_input = [&](int t, int n) {
            const long long from = t * step + (groups.first(n) + row0) * H + unit;
#pragma unroll
            for (int j = 0; j < TILES; ++j)
                if (row0 + 8 * j < groups.rows(n)) {
                    const long long at = from + 8 * j * H;
                    gate[j] = gates[at];
                    before[j] = c[at];
                    after[j] = c[at + step];
                    d[j] = __uint_as_float((u32)dout[at] << 16);
                }
        };
        fetch_input(steps - 1, 0);
        int item = 0;
        for (int t = steps - 1; t >= 0; --t)
            for (int n = 0; n < GROUPS; ++n) {
                int rows = groups.rows(n);
                half* next = exchange + 4 * t * step + groups.first(n) * COLUMNS
                             + (unit / 2 * rows + row0) * 8 + unit % 2 * 4;
                float cell[TILES], tc[TILES];
#pragma unroll
                for (int j = 0; j < TILES; ++j) {
                    tc[j] = tanh_(after[j]);
                    cell[j] = dcell[(n * TILES + j) * 128];
                }
                bool hope = true;
                if (t < steps - 1 || later) {
                    const float* sums = (const float*)sums_of(item) + thread;
                    hope = wait_for_sums(item, rows, thread == 0, stalled);
#pragma unroll
                    for (int j = 0; j < TILES; ++j) {
#pragma unroll
                        for (int from = 0; from < CLUSTER; ++from) d[j] += sums[(from * TILES + j) * 128];
                        if (!hope) d[j] = __uint_as_float(BAD);
                    }
                    ++item;
                }
                // A loop for each stage: the tiles' latencies overlap.
#pragma unroll
                for (int j = 0; j < TILES; ++j) {
                    float4 a = gate[j];
                    float dcl = cell[j] + d[j] * a.w * (1.0f - tc[j] * tc[j]);
                    gate[j] = make_float4(dcl * a.z * a.x * (1.0f - a.x), dcl * before[j] * a.y * (1.0f - a.y),
                                          dcl * a.x * (1.0f - a.z * a.z), d[j] * tc[j] * a.w * (1.0f - a.w));
                    cell[j] = dcl * a.y;
                }
                uint2 words[TILES];
#pragma unroll
                for (int j = 0; j < TILES; ++j) {
                    words[j] = make_uint2(pack(gate[j].x, gate[j].y), pack(gate[j].z, gate[j].w));
                    if (row0 + 8 * j < rows && (t > 0 || earlier) && hope) store2(next + 64 * j, words[j]);
                }
                if (LARGE && thread % 32 == 0 && (t > 0 || earlier) && hope) add1(flags_of(flags, t, n) + blockIdx.x);
                // what follows is on nobody's way
                half* out = dgates + 4 * (t * step + (groups.first(n) + row0) * H + unit);
#pragma unroll
                for (int j = 0; j < TILES; ++j)
                    if (row0 + 8 * j < rows) {
                        *(uint2*)(out + 32 * j * H) = words[j];
                        dcell[(n * TILES + j) * 128] = cell[j];
                        add(db[(n * TILES + j) * 128], gate[j]);
                    }
                if (n + 1 < GROUPS) fetch_input(t, n + 1);
                else if (t > 0) fetch_input(t - 1, 0);
            }
        asm volatile("" : "+r"(unit), "+r"(row0));  // addresses anew: kept over the loop they would be spilled
        for (int n = 0; n < GROUPS; ++n)
            for (int j = 0; j < TILES; ++j)
                if (row0 + 8 * j < groups.rows(n)) {
                    int at = (groups.first(n) + row0 + 8 * j) * H + unit;
                    dc[at] = dcell[(n * TILES + j) * 128];
                    dbias[at] = db[(n * TILES + j) * 128];
                }
    } else {
        leave_registers_to_fetch();
        Fetcher fetcher{stalled};
        for (int t = steps - 1 + later; t > 0; --t)
            for (int n = 0; n < GROUPS; ++n) {
                int rows = groups.rows(n), row = threadIdx.x % 128 / 2;
                if (LARGE && t > 2 && row < rows && blockIdx.x * OWN < H) {
                    const long long at = (t - 3) * step + (groups.first(n) + row) * H + blockIdx.x * OWN;
                    prefetch(gates + at + threadIdx.x % 2 * 8);
                    if (threadIdx.x % 2) prefetch(c + at);
                    else prefetch(dout + at);
                }
                const half* share = exchange + 4 * t * step + groups.first(n) * COLUMNS + rank * SHARE * rows;
                fetcher.fetch(share, rows, flags_of(flags, t, n));
            }
    }
    leave();
}
