//! Idle processors that stay awake while requests come one upon the other (docs/design/0041).
//!
//! Design:
//! * A program that waits for an answer leaves its processor idle, and the kernel puts that processor to sleep. Waking it takes longer than serving most
//!   requests: 15 to 25 us on a virtual machine, where sleeping means leaving the guest, and as long on a real one that sleeps deeply.
//! * The kernel bounds that time for as long as a process holds `/dev/cpu_dma_latency` open with a bound written to it
//!   (Documentation/power/pm_qos_interface.rst). With a bound of 0 us idle processors poll for work. The bound ends with the process, however that ends.
//! * It holds for all processors of the machine and costs energy. So it is set for bursts of requests alone, and only where it was asked for or where
//!   sleeping is known to be expensive and there are few processors.

mod awake;

use std::fs::File;

pub use awake::Bursts;
pub(crate) use awake::{AwakeProcessors, EndsAwakeProcessors};

use crate::processor_list::count_of;

/// Most processors that are kept awake without being asked for.
const PROCESSORS_MAX: usize = 16;

/// Whether idle processors are kept awake during bursts of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessorLatency {
    /// On virtual machines with up to sixteen processors.
    #[default]
    Auto,
    /// On every machine that allows it.
    Low,
    /// Never: they sleep as the system decides.
    System,
}

/// The processors of this machine, as far as they matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Machine {
    /// All that are switched on: the bound holds for those that this process may not use as well.
    processors: usize,
    is_virtual: bool,
    can_poll: bool,
}

impl Machine {
    fn this() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            processors: count_of(&text("/sys/devices/system/cpu/online")).unwrap_or(0),
            is_virtual: is_virtual(&text("/proc/cpuinfo")),
            can_poll: can_poll(&text("/sys/devices/system/cpu/cpuidle/current_driver")),
        }
    }
}

/// Whether the kernel chooses among ways to be idle; else the bound changes nothing.
fn can_poll(idle_driver: &str) -> bool {
    !matches!(idle_driver.trim(), "" | "none")
}

/// Whether processors that are described like this belong to a virtual machine. Those of x86 say so; others count as real.
fn is_virtual(cpuinfo: &str) -> bool {
    let mut flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags.next().is_some_and(|line| line.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

/// Why processors sleep as the system decides; `None` where the bound is of use.
fn obstacle(wish: ProcessorLatency, machine: Machine) -> Option<String> {
    match wish {
        ProcessorLatency::System => Some("`processor_latency` is `system`".to_owned()),
        _ if machine.processors < 2 => Some("there is one processor".to_owned()),
        _ if !machine.can_poll => Some("this kernel has one way to be idle".to_owned()),
        ProcessorLatency::Low => None,
        ProcessorLatency::Auto if !machine.is_virtual => Some("the machine is not virtual".to_owned()),
        ProcessorLatency::Auto if machine.processors > PROCESSORS_MAX => {
            Some(format!("there are more than {PROCESSORS_MAX} processors"))
        }
        ProcessorLatency::Auto => None,
    }
}

/// Opens the interface for the bound, if it is of use on this machine.
///
/// # Errors
/// The reason why processors sleep as the system decides.
pub(crate) fn open(wish: ProcessorLatency) -> Result<File, String> {
    match obstacle(wish, Machine::this()) {
        Some(obstacle) => Err(obstacle),
        None => awake::open_device(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_chosen_on_small_virtual_machines_and_where_it_is_asked_for() {
        let machine = |processors, is_virtual| Machine { processors, is_virtual, can_poll: true };
        let is_chosen = |wish, machine| obstacle(wish, machine).is_none();
        for (wish, of_virtual, of_many, of_real) in [
            (ProcessorLatency::Auto, true, false, false),
            (ProcessorLatency::Low, true, true, true),
            (ProcessorLatency::System, false, false, false),
        ] {
            assert_eq!(is_chosen(wish, machine(2, true)), of_virtual, "{wish:?}");
            assert_eq!(is_chosen(wish, machine(64, true)), of_many, "{wish:?}");
            assert_eq!(is_chosen(wish, machine(8, false)), of_real, "{wish:?}");
            assert!(!is_chosen(wish, machine(1, true)), "no other processor has to be woken");
            assert!(!is_chosen(wish, Machine { can_poll: false, ..machine(2, true) }));
        }
    }

    #[test]
    fn processors_and_ways_to_be_idle_are_read_as_the_kernel_shows_them() {
        assert_eq!(["0-1\n", "0-3,8\n", "0\n", "", "3-1"].map(|list| count_of(list).unwrap_or(0)), [2, 5, 1, 0, 0]);
        assert_eq!(["haltpoll\n", "intel_idle\n", "none\n", ""].map(can_poll), [true, true, false, false]);
    }

    #[test]
    fn a_virtual_machine_is_known_by_the_flag_of_its_processors() {
        assert!(is_virtual("processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\nbugs\t\t: spectre_v1\n"));
        assert!(!is_virtual("processor\t: 0\nmodel name\t: hypervisor\nflags\t\t: fpu lahf_lm\n"));
        assert!(!is_virtual(""));
    }
}
