//! The description of an on-disk format for a fuzzer.
//!
//! Invariant: the crates that have formats list them (`on_disk_formats`), each with the reader and the writer that
//! are used for real. So the fuzz targets reach formats that are private to their crates.

/// One on-disk format.
#[derive(Clone, Copy)]
pub struct OnDiskFormat {
    /// Name, which is that of its folder in a corpus.
    pub name: &'static str,
    /// Well-formed bytes to begin with.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Makes all checksums fit, so that the code behind them is reached. Does nothing where there are none.
    pub repair: fn(&mut [u8]),
    /// Reads bytes and writes the result. `None` where they are refused.
    pub read_and_write: fn(&[u8]) -> Option<Vec<u8>>,
    /// Whether bytes that are accepted are the ones that are written for them.
    pub form: FormatForm,
}

/// Whether there is one way to write something down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatForm {
    /// One way: bytes that are read and written again are the same, byte by byte.
    Unique,
    /// Several ways: a reader ignores some bytes. The bytes written for a value are read as the same value.
    HasUnused,
}

impl OnDiskFormat {
    /// Reads bytes, and says where reading and writing do not fit together.
    ///
    /// # Errors
    ///
    /// How the reader and the writer of the format disagree. Refusing bytes is not an error.
    pub fn check(&self, bytes: &[u8]) -> Result<Acceptance, &'static str> {
        let Some(written) = (self.read_and_write)(bytes) else { return Ok(Acceptance::Refused) };
        if self.form == FormatForm::Unique && written != bytes {
            return Err("what was read is written differently");
        }
        match (self.read_and_write)(&written) {
            Some(again) if again == written => Ok(Acceptance::Accepted),
            Some(_) => Err("what was written is read as something else"),
            None => Err("what was written is refused"),
        }
    }
}

/// The outcome of reading some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// They mean something.
    Accepted,
    /// They do not.
    Refused,
}
