//! Kinds of requests.

macro_rules! opcodes {
    ($($variant:ident = $number:literal, $name:literal, $fixed:expr;)*) => {
        /// A kind of request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names are those of the system calls")]
        pub enum Opcode {
            $($variant,)*
        }

        impl Opcode {
            /// All kinds that are known.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The kind with a number of the protocol; `None` for one that came later.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Its number in the protocol.
            #[must_use]
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)*
                }
            }

            /// A word for people.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Length of the structure between the header and the names and data.
            pub(super) const fn structure_length(self) -> usize {
                match self {
                    $(Self::$variant => $fixed,)*
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1, "lookup", 0;
    Forget = 2, "forget", 8;
    GetAttr = 3, "getattr", 16;
    SetAttr = 4, "setattr", 88;
    ReadLink = 5, "readlink", 0;
    Symlink = 6, "symlink", 0;
    MakeNode = 8, "mknod", 16;
    MakeDirectory = 9, "mkdir", 8;
    Unlink = 10, "unlink", 0;
    RemoveDirectory = 11, "rmdir", 0;
    Rename = 12, "rename", 8;
    Link = 13, "link", 8;
    Open = 14, "open", 8;
    Read = 15, "read", 40;
    Write = 16, "write", 40;
    StatFs = 17, "statfs", 0;
    Release = 18, "release", 24;
    Sync = 20, "fsync", 16;
    // Twice as long where that was agreed on.
    SetXattr = 21, "setxattr", 8;
    GetXattr = 22, "getxattr", 8;
    ListXattr = 23, "listxattr", 8;
    RemoveXattr = 24, "removexattr", 0;
    Flush = 25, "flush", 24;
    // Longer since 7.36: the fields beyond this are read where present.
    Init = 26, "init", 16;
    OpenDirectory = 27, "opendir", 8;
    ReadDirectory = 28, "readdir", 40;
    ReleaseDirectory = 29, "releasedir", 24;
    SyncDirectory = 30, "fsyncdir", 16;
    GetLock = 31, "getlk", 48;
    SetLock = 32, "setlk", 48;
    SetLockWait = 33, "setlkw", 48;
    Access = 34, "access", 8;
    Create = 35, "create", 16;
    Interrupt = 36, "interrupt", 8;
    MapBlock = 37, "bmap", 16;
    Destroy = 38, "destroy", 0;
    Ioctl = 39, "ioctl", 32;
    Poll = 40, "poll", 24;
    NotifyReply = 41, "notify_reply", 40;
    BatchForget = 42, "batch_forget", 8;
    Allocate = 43, "fallocate", 32;
    ReadDirectoryPlus = 44, "readdirplus", 40;
    RenameWithFlags = 45, "rename2", 16;
    Seek = 46, "lseek", 24;
    CopyRange = 47, "copy_file_range", 56;
    SetUpMapping = 48, "setupmapping", 40;
    RemoveMapping = 49, "removemapping", 4;
    SyncVolume = 50, "syncfs", 8;
    CreateUnnamed = 51, "tmpfile", 16;
    Statx = 52, "statx", 24;
    CopyLongRange = 53, "copy_file_range_64", 56;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_kinds_belong_together() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(opcode.number()), Some(*opcode));
        }
        assert_eq!(Opcode::from_number(0), None);
        assert_eq!(Opcode::from_number(4096), None);
    }
}
