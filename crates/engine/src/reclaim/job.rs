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

#[cfg(test)]
mod tests {
    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::{set_line, set_swap};

    #[test]
    fn a_job_has_the_limits_that_it_is_given() {
        let config = Config::default();
        let made = job(&config, Bytes::mib(3), true, Bytes::mib(9), Bytes::mib(2));
        let usual = Job::new(&config.sweep, Bytes::mib(9));
        assert_eq!(made, Job { floor: Bytes::mib(2), swap_floor: Bytes::mib(3), file_only: true, ..usual.clone() });
        let cached = swap_cache_job(&config, Bytes::mib(9), Bytes::mib(4));
        assert_eq!(cached, Job { swap_writes: Bytes::mib(4), ..usual });
    }

    #[test]
    fn the_swap_floor_is_that_of_the_user_and_leaves_room_for_an_image() {
        let root = FakeRoot::captured(Release::V6_12);
        set_swap(&root, "zram0", 1000);
        set_line(&root, "proc/meminfo", "MemTotal:", "8192 kB");
        set_line(&root, "proc/meminfo", "MemFree:", "2048 kB");
        let context = swap_context(&Kernel::open(root.path()).expect("a kernel"));
        assert_eq!(context.swap.map(|swap| swap.total), Some(Bytes::mib(1000)));
        assert_eq!(context.image, None, "this machine does not hibernate");
        let context = SwapContext { image: Some(Bytes::mib(600)), ..context };
        let mut config = Config::default();
        config.guard.swap_floor = "10%".parse().expect("an amount");
        let floor = |wanted: Option<&str>, context| {
            let wanted = wanted.map(|text| text.parse().expect("an amount"));
            swap_floor_of(&config, wanted, context, Bytes::mib(100))
        };
        let without = SwapContext { image: None, ..context };
        assert_eq!(floor(Some("50%"), without), Bytes::mib(500));
        assert!(floor(None, without) >= Bytes::mib(100), "that of the configuration");
        assert!(floor(Some("0"), context) >= Bytes::mib(500), "the image without what leaves");
    }
}
