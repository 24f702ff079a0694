//! The jobs that the engine's callers order. The policy makes those of sweeps itself.

use omr_kernel::Kernel;
use omr_kernel::meminfo::Meminfo;
use omr_machine::sample::snapshot::{SwapSpace, read_hibernates};
use omr_policy::pace::Job;
use omr_policy::{Config, SwapContext, swap_floor};
use omr_units::{Amount, Bytes};

/// Returns a job that frees `amount` of a group and leaves `floor`, by the configuration's pace.
/// `swap_floor`: swap of the machine that stays free. `file_only`: the kernel can
/// reclaim page cache only.
pub fn job(config: &Config, swap_floor: Bytes, file_only: bool, amount: Bytes, floor: Bytes) -> Job {
    Job { floor, swap_floor, file_only, ..Job::new(&config.sweep, amount) }
}

/// A job that frees swap cache, whose pages are in swap already: it ends when the kernel sends more
/// than `excess` to swap, which is other memory of the group.
pub fn swap_cache_job(config: &Config, amount: Bytes, excess: Bytes) -> Job {
    Job { swap_writes: excess, ..Job::new(&config.sweep, amount) }
}

/// Swap of the machine that stays free while `amount` leaves memory: `wanted`, or the
/// configuration's.
pub fn swap_floor_of(config: &Config, wanted: Option<Amount>, context: SwapContext, amount: Bytes) -> Bytes {
    let Some(wanted) = wanted else { return swap_floor(config, context, amount) };
    let mut config = Config::clone(config);
    config.guard.swap_floor = wanted;
    swap_floor(&config, context, amount)
}

/// Reads the values on which the swap floor depends.
pub fn swap_context(kernel: &Kernel) -> SwapContext {
    let swap = SwapSpace::read(kernel);
    let memory = Meminfo::read(kernel, &mut Vec::new()).ok();
    let image = memory.and_then(|memory| Some(memory.mem_total? - memory.mem_free?));
    SwapContext { swap: swap.map(omr_policy::Swap::from), image: image.filter(|_| read_hibernates(kernel, swap)) }
}
