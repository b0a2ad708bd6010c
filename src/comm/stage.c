/* Pages for bytes that came before they could be placed. The last one given back is taken next: it is in the
 * cache. */
#include <stdlib.h>

#include "comm/internal.h"

inspan_status_t stage_open(stage_t *stage, uint32_t peers)
{
    uint64_t n =
        (uint64_t)peers * ((uint64_t)COMM_OPEN_WINDOWS * COMM_WINDOW + COMM_EAGER_BUDGET) / COMM_PAGE;
    if (n >= COMM_NONE) return INSPAN_LIMIT;
    stage->n = (uint32_t)n;
    stage->free = COMM_NONE;
    if (n == 0) return INSPAN_OK;
    stage->memory = aligned_alloc(COMM_PAGE, n * COMM_PAGE); /* the kernel backs only what is touched */
    stage->pages = calloc(n, sizeof *stage->pages);
    if (stage->memory == NULL || stage->pages == NULL) return INSPAN_NO_MEMORY;
    for (uint32_t i = stage->n; i-- > 0;) stage_give(stage, i);
    return INSPAN_OK;
}

void stage_close(stage_t *stage)
{
    free(stage->memory);
    free(stage->pages);
}

uint32_t stage_take(stage_t *stage)
{
    uint32_t page = stage->free;
    if (page != COMM_NONE) {
        stage->free = stage->pages[page].next;
        stage->pages[page] = (page_t){.next = COMM_NONE};
    }
    return page;
}

void stage_give(stage_t *stage, uint32_t page)
{
    stage->pages[page].next = stage->free;
    stage->free = page;
}

void stage_append(stage_t *stage, page_chain_t *chain, uint32_t page)
{
    stage->pages[page].next = COMM_NONE;
    if (chain->first == COMM_NONE)
        chain->first = page;
    else
        stage->pages[chain->last].next = page;
    chain->last = page;
}
