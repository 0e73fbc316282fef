//! Writing lines of the processor's cache back to the memory behind it.
//!
//! Invariants: the instruction is chosen once, when a region is opened. A fence follows each of them, so that later
//! stores cannot reach the medium before. `clwb` keeps the line in the cache, `clflushopt` and `clflush` drop it; other
//! architectures ask the kernel, which knows theirs.

use std::io;

/// Bytes of a line of the cache.
pub(super) const LINE: usize = 64;

/// A way of writing lines back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteBack {
    #[cfg(target_arch = "x86_64")]
    Clwb,
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    #[cfg(target_arch = "x86_64")]
    Clflush,
    #[cfg(not(target_arch = "x86_64"))]
    Msync,
    /// Memory that stands for a medium.
    Nothing,
}

impl WriteBack {
    /// The best that this processor has.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn detect() -> Self {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const EBX_CLFLUSHOPT: u32 = 1 << 23;
        const EBX_CLWB: u32 = 1 << 24;
        if __cpuid(0).eax < 7 {
            return Self::Clflush;
        }
        let features = __cpuid_count(7, 0).ebx;
        if features & EBX_CLWB != 0 {
            Self::Clwb
        } else if features & EBX_CLFLUSHOPT != 0 {
            Self::ClflushOpt
        } else {
            Self::Clflush
        }
    }

    /// The kernel's.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn detect() -> Self {
        Self::Msync
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Clwb => "clwb",
            #[cfg(target_arch = "x86_64")]
            Self::ClflushOpt => "clflushopt",
            #[cfg(target_arch = "x86_64")]
            Self::Clflush => "clflush",
            #[cfg(not(target_arch = "x86_64"))]
            Self::Msync => "msync",
            Self::Nothing => "memory",
        }
    }

    /// Writes `count` lines from `start` on back.
    ///
    /// # Safety
    ///
    /// `start` is the address of a line, and so many lines from there on lie within one shared mapping of a file.
    pub(super) unsafe fn lines(self, start: *const u8, count: usize) -> io::Result<()> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Clwb | Self::ClflushOpt | Self::Clflush => {
                for index in 0..count {
                    // SAFETY: the caller promises that this line is mapped; the instruction changes no memory, and
                    // `detect` saw that the processor has it.
                    unsafe { self.line(start.add(index * LINE)) };
                }
                // SAFETY: every processor of this architecture has the instruction.
                unsafe { std::arch::x86_64::_mm_sfence() };
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Msync => {
                // Whole pages, of whatever size: the mapping begins at one.
                let page = rustix::param::page_size();
                let skipped = start.addr() % page;
                let length = skipped + count * LINE;
                // SAFETY: the page of a mapped line is mapped, and synchronizing changes no memory.
                unsafe {
                    rustix::mm::msync(start.sub(skipped).cast_mut().cast(), length, rustix::mm::MsyncFlags::SYNC)?;
                }
            }
            Self::Nothing => std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst),
        }
        Ok(())
    }

    /// # Safety
    ///
    /// `line` is mapped, and the processor has the instruction.
    #[cfg(target_arch = "x86_64")]
    unsafe fn line(self, line: *const u8) {
        use std::arch::asm;
        match self {
            // SAFETY: see above. The default of `asm!` is that it reads and writes memory, so no store moves across it.
            Self::Clwb => unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) },
            // SAFETY: see above.
            Self::ClflushOpt => unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) },
            // SAFETY: see above.
            Self::Clflush | Self::Nothing => unsafe {
                asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags))
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_that_this_processor_has_leaves_the_bytes_as_they_were() {
        let bytes: Vec<u8> = (0..=255).cycle().take(8192).collect();
        let start = bytes.as_ptr().align_offset(4096);
        let mut ways = vec![WriteBack::Nothing];
        // The kernel's way needs a mapping; opening a region tries it.
        if cfg!(target_arch = "x86_64") {
            ways.push(WriteBack::detect());
        }
        #[cfg(target_arch = "x86_64")]
        ways.push(WriteBack::Clflush);
        for way in ways {
            // SAFETY: the lines lie within `bytes`; the instructions ask for mapped memory and not for a file.
            unsafe { way.lines(bytes[start..].as_ptr(), 8).unwrap() };
            assert!(bytes.iter().enumerate().all(|(index, byte)| usize::from(*byte) == index % 256), "{}", way.name());
        }
    }
}
