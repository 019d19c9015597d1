/* Asks the occupancy calculation in NVIDIA's cuda_occupancy.h about every combination of three lists.
 *
 * Arguments: major, minor, threads per SM, threads per block, registers per SM (and per block),
 * shared bytes per SM, shared bytes per block (opt-in), reserved shared bytes per block.
 * Input: three lists (registers per thread, threads per block, shared bytes per block), each with its length
 * before it.
 * Output: two bytes per combination, the last list fastest: blocks per SM and the limiting factors.
 * UNKNOWN in place of the blocks: the header refuses the device. AMBIGUOUS: static and dynamic shared memory
 * of the same size make a difference.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <cuda_occupancy.h>

enum { ARGUMENTS = 8, AMBIGUOUS = 254, UNKNOWN = 255 };

static int *read_list(int *length)
{
    int *list;
    if (scanf("%d", length) != 1 || *length <= 0)
        exit(2);
    list = malloc((size_t)*length * sizeof *list);
    for (int i = 0; list && i < *length; i++)
        if (scanf("%d", &list[i]) != 1)
            exit(2);
    return list ? list : (exit(2), NULL);
}

static int ask(const cudaOccDeviceProp *device, int registers, int threads, int fixed, int dynamic,
               cudaOccResult *result)
{
    cudaOccFuncAttributes kernel = {0};
    cudaOccDeviceState state = {0};
    kernel.maxThreadsPerBlock = INT_MAX;
    kernel.numRegs = registers;
    kernel.sharedSizeBytes = (size_t)fixed;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = (size_t)dynamic;
    kernel.numBlockBarriers = 1;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_DEFAULT;
    return cudaOccMaxActiveBlocksPerMultiprocessor(result, device, &kernel, &state, threads,
                                                   (size_t)dynamic) == CUDA_OCC_SUCCESS;
}

int main(int count, char **argument)
{
    int figure[ARGUMENTS], registers_length, threads_length, shared_length;
    int *registers, *threads, *shared;
    cudaOccDeviceProp device = {0};

    if (count != ARGUMENTS + 1)
        return 2;
    for (int i = 0; i < ARGUMENTS; i++)
        figure[i] = atoi(argument[i + 1]);
    device.computeMajor = figure[0];
    device.computeMinor = figure[1];
    device.maxThreadsPerMultiprocessor = figure[2];
    device.maxThreadsPerBlock = figure[3];
    device.regsPerMultiprocessor = figure[4];
    device.regsPerBlock = figure[4];
    device.sharedMemPerMultiprocessor = (size_t)figure[5];
    device.sharedMemPerBlockOptin = (size_t)figure[6];
    device.reservedSharedMemPerBlock = (size_t)figure[7];
    device.sharedMemPerBlock = 48 * 1024;
    device.warpSize = 32;
    device.numSms = 1;

    registers = read_list(&registers_length);
    threads = read_list(&threads_length);
    shared = read_list(&shared_length);
    for (int r = 0; r < registers_length; r++)
        for (int t = 0; t < threads_length; t++)
            for (int s = 0; s < shared_length; s++) {
                cudaOccResult asked = {0}, fixed = {0};
                int blocks = UNKNOWN;
                if (ask(&device, registers[r], threads[t], 0, shared[s], &asked) &&
                    ask(&device, registers[r], threads[t], shared[s], 0, &fixed))
                    blocks = asked.activeBlocksPerMultiprocessor == fixed.activeBlocksPerMultiprocessor &&
                                     asked.limitingFactors == fixed.limitingFactors
                                 ? asked.activeBlocksPerMultiprocessor
                                 : AMBIGUOUS;
                putchar(blocks);
                putchar((int)asked.limitingFactors);
            }
    return 0;
}
