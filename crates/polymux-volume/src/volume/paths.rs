//! From inodes to paths.

use polymux_records::error::Result;
use polymux_types::Ino;

use super::Volume;

/// Deepest path that is printed for a person.
const PATH_DEPTH_MAX: usize = 4096;

impl Volume {
    /// One path of an inode from the root, without a leading slash; `None` where it has no name.
    pub fn path_of(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        let mut names = Vec::new();
        let mut present = ino;
        while present != Ino::ROOT {
            let Some((parent, name)) = self.metadata.any_name(present)? else { return Ok(None) };
            names.push(name);
            present = parent;
            if names.len() > PATH_DEPTH_MAX {
                return Ok(None);
            }
        }
        names.reverse();
        Ok(Some(names.join(&b'/')))
    }
}
