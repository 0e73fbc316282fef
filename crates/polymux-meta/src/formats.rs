//! The on-disk formats of this crate, for their fuzz targets.
//!
//! Each is read by the function that reads it for real. Nothing here is used while a store is open.

use polymux_types::on_disk_format::OnDiskFormat;

use crate::{batch, copy, log, log_store};

/// Every format of this crate.
#[doc(hidden)]
#[must_use]
pub fn on_disk_formats() -> Vec<OnDiskFormat> {
    let mut formats = log::on_disk_formats();
    formats.extend([batch::on_disk_format(), copy::on_disk_format(), log_store::on_disk_format()]);
    formats
}
