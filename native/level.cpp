// The table of function pointers through which the module calls the loops of one instruction set.

#include "planes.h"

namespace LEVEL {

#define NAME(level) NAME_OF(level)
#define NAME_OF(level) #level
#define POINTER(result, name, arguments) &name,
const Loops loops = {NAME(LEVEL), int(PANEL), SLAB * QUERY_BATCH, FOR_ALL_LOOPS(POINTER)};

}  // namespace LEVEL
