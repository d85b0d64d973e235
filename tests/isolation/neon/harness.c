/* Serves native tasks over a pipe: the memory of a launch comes in, is relocated, every task runs, the memory goes out.
 *
 * request:  int64 tasks, slots, fields, segments, pointers
 *           int64 job[fields]
 *           int64 size[segments]
 *           int64 (field, segment, offset) [pointers]     fields of the job that are addresses
 *           the bytes of every segment
 * response: the bytes of every segment
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern void ENTRY(int64_t *job, int64_t task, int64_t slot);

static void receive(void *target, size_t bytes) {
    if (bytes && fread(target, 1, bytes, stdin) != bytes) exit(3);
}

static void *reserve(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!memory) exit(4);
    return memory;
}

int main(void) {
    int64_t head[5];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        int64_t tasks = head[0], slots = head[1], fields = head[2], segments = head[3], pointers = head[4];
        int64_t *job = reserve(fields * 8), *sizes = reserve(segments * 8), *relocations = reserve(pointers * 24);
        char **memory = reserve(segments * sizeof(char *));
        receive(job, fields * 8);
        receive(sizes, segments * 8);
        receive(relocations, pointers * 24);
        for (int64_t i = 0; i < segments; i++) {
            memory[i] = reserve(sizes[i]);
            receive(memory[i], sizes[i]);
        }
        for (int64_t i = 0; i < pointers; i++) {
            int64_t *r = relocations + 3 * i;
            job[r[0]] = (int64_t)(intptr_t)(memory[r[1]] + r[2]);
        }
        for (int64_t task = 0; task < tasks; task++) ENTRY(job, task, task % slots);
        for (int64_t i = 0; i < segments; i++) {
            fwrite(memory[i], 1, sizes[i], stdout);
            free(memory[i]);
        }
        fflush(stdout);
        free(job), free(sizes), free(relocations), free(memory);
    }
    return 0;
}
