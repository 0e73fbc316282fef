//! The first request of a connection and its answer.

use std::ops::{BitAnd, BitOr};

use super::bytes::{Malformed, Reader, Writer};

/// Features that a kernel can offer and a file system can request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

macro_rules! capabilities {
    ($($name:ident = $bit:literal, $meaning:literal;)*) => {
        impl Capabilities {
            $(#[doc = $meaning] pub const $name: Self = Self(1 << $bit);)*

            /// The names of all that are in here.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                [$((Self::$name, stringify!($name)),)*]
                    .into_iter()
                    .filter_map(move |(one, name)| self.contains(one).then_some(name))
            }
        }
    };
}

capabilities! {
    ASYNC_READ = 0, "Several reads of one file at once.";
    ATOMIC_O_TRUNC = 3, "Opening empties a file in the same request.";
    EXPORT_SUPPORT = 4, "`.` and `..` can be looked up (NFS).";
    BIG_WRITES = 5, "Writes of more than a page.";
    DONT_MASK = 6, "The umask is applied by the file system.";
    AUTO_INVAL_DATA = 12, "Cached data goes when the modification time changes.";
    DO_READDIRPLUS = 13, "Listings with attributes.";
    READDIRPLUS_AUTO = 14, "Listings with attributes where that is worth it.";
    ASYNC_DIO = 15, "Direct I/O that does not wait.";
    WRITEBACK_CACHE = 16, "Writes are collected in the kernel.";
    PARALLEL_DIROPS = 18, "Lookups and listings of one directory at once.";
    HANDLE_KILLPRIV = 19, "The file system clears set-id bits (first form).";
    POSIX_ACL = 20, "POSIX ACLs.";
    MAX_PAGES = 22, "Requests of more than 128 KiB.";
    CACHE_SYMLINKS = 23, "Targets of symbolic links are cached.";
    EXPLICIT_INVAL_DATA = 25, "Cached data goes only when it is asked for.";
    HANDLE_KILLPRIV_V2 = 28, "The file system clears set-id bits (second form).";
    SETXATTR_EXT = 29, "`SETXATTR` has flags of its own.";
    INIT_EXT = 30, "There are more than 32 capabilities.";
    DIRECT_IO_ALLOW_MMAP = 36, "Files without cached reads and writes can be mapped to be shared.";
    PASSTHROUGH = 37, "Reads and writes can go to another file directly.";
    HAS_RESEND = 39, "Requests that were read and not answered are sent again on demand.";
    OVER_IO_URING = 41, "Requests can come through `io_uring`.";
}

impl Capabilities {
    /// None at all.
    pub const NONE: Self = Self(0);

    /// Whether all of these are in here.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The capabilities in here that are not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    fn from_halves(low: u32, high: u32) -> Self {
        Self(u64::from(low) | u64::from(high) << 32)
    }

    fn low(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).expect("32 bits")
    }

    fn high(self) -> u32 {
        u32::try_from(self.0 >> 32).expect("32 bits")
    }
}

impl BitOr for Capabilities {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Capabilities {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The kernel's offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitRequest {
    /// Version of the protocol, both parts.
    pub version: (u32, u32),
    /// Most bytes that it reads ahead.
    pub read_ahead_max: u32,
    /// Features that the kernel supports.
    pub capabilities: Capabilities,
}

impl InitRequest {
    pub(super) fn parse(mut fixed: Reader<'_>, mut rest: Reader<'_>) -> Result<Self, Malformed> {
        let version = (fixed.u32()?, fixed.u32()?);
        let (read_ahead_max, low) = (fixed.u32()?, fixed.u32()?);
        let extended = Capabilities(u64::from(low)).contains(Capabilities::INIT_EXT);
        let high = if extended { rest.u32()? } else { 0 };
        Ok(Self { version, read_ahead_max, capabilities: Capabilities::from_halves(low, high) })
    }
}

/// The agreed parameters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitReply {
    /// Version of the protocol, both parts.
    pub version: (u32, u32),
    /// Most bytes that are read ahead.
    pub read_ahead_max: u32,
    /// Requested capabilities, all of which were offered.
    pub capabilities: Capabilities,
    /// Requests that may be sent before any thread waits for them.
    pub background_max: u16,
    /// From how many of these on the device counts as congested.
    pub congestion_threshold: u16,
    /// Most bytes of a write.
    pub write_max: u32,
    /// Most pages of a request.
    pub pages_max: u16,
    /// How many file systems may lie on one another below this one, with passthrough.
    pub stack_depth_max: u32,
}

impl InitReply {
    /// The bytes of the answer.
    #[must_use]
    pub fn encode(&self) -> [u8; 64] {
        Writer::new()
            .u32(self.version.0)
            .u32(self.version.1)
            .u32(self.read_ahead_max)
            .u32(self.capabilities.low())
            .u16(self.background_max)
            .u16(self.congestion_threshold)
            .u32(self.write_max)
            // Times have nanoseconds.
            .u32(1)
            .u16(self.pages_max)
            .u16(0)
            .u32(self.capabilities.high())
            .u32(self.stack_depth_max)
            .finish()
    }
}
