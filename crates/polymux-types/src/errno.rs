//! Error numbers of the system-call interface, the currency of every public face.

use std::fmt;

/// An error number as `errno(3)` defines it; never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! error_numbers {
    ($($name:ident),* $(,)?) => {
        #[allow(missing_docs, reason = "the names are those of errno(3), which explains them")]
        impl Errno {
            $(pub const $name: Errno = Errno(libc::$name);)*
        }

        fn name_of(number: i32) -> Option<&'static str> {
            $(if number == libc::$name { return Some(stringify!($name)); })*
            None
        }
    };
}

error_numbers!(
    E2BIG,
    EACCES,
    EAGAIN,
    EBADF,
    EBUSY,
    EDQUOT,
    EEXIST,
    EFBIG,
    EINTR,
    EINVAL,
    EIO,
    EISDIR,
    ELOOP,
    EMFILE,
    EMLINK,
    ENAMETOOLONG,
    ENFILE,
    ENODATA,
    ENODEV,
    ENOENT,
    ENOMEM,
    ENOSPC,
    ENOSYS,
    ENOTCONN,
    ENOTDIR,
    ENOTEMPTY,
    ENOTTY,
    ENXIO,
    EOPNOTSUPP,
    EOVERFLOW,
    EPERM,
    EPROTO,
    ERANGE,
    EROFS,
    ESTALE,
    ETIMEDOUT,
    ETXTBSY,
    EXDEV,
);

impl Errno {
    /// Wraps a raw number; anything that is not positive becomes `EIO`, because it names no error.
    #[must_use]
    pub const fn from_raw(number: i32) -> Self {
        if number > 0 { Self(number) } else { Self(libc::EIO) }
    }

    /// The raw positive number.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name_of(self.0) {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self:?} ({})", std::io::Error::from_raw_os_error(self.0))
    }
}
