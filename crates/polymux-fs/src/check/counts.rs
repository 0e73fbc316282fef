//! Pass over counts: links of every inode, and names that a directory has counted.
//!
//! Invariants: names are right, because the passes over names and tree came first. An open or uncounted directory
//! record (docs/design/0009) gives no number of names; its links are exact.

use polymux_meta::Batch;
use polymux_records::attributes::FileKind;
use polymux_records::error::Result;
use polymux_records::store::{Dirent, EntryCount, InodeBody, InodeRecord, keys};
use polymux_types::Ino;

use super::cursor::Cursor;
use super::{Examination, kinds, put_inode};

/// The entries of a directory.
#[derive(Default)]
struct Content {
    names: u64,
    subdirectories: u64,
    has_unreadable: bool,
}

pub(crate) fn check(exam: &mut Examination<'_>) -> Result<()> {
    let mut inodes = exam.cursor(keys::inodes());
    let mut lists = exam.cursor(keys::of_kind(b'p'));
    let mut names = exam.cursor(keys::of_kind(b'd'));
    while let Some(ino) = inodes.ino()? {
        let Some((_, value)) = inodes.next_of(ino)? else { continue };
        lists.skip_to(ino)?;
        let mut links = 0;
        while lists.next_of(ino)?.is_some() {
            links += 1;
        }
        let Ok(record) = InodeRecord::decode(ino, &value) else { continue };
        match record.body {
            InodeBody::Directory { .. } => {
                let content = content_of(&mut names, ino)?;
                // One that was removed while it is open has no links.
                let links = if links == 0 && ino != Ino::ROOT { 0 } else { 2 + content.subdirectories };
                directory(exam, ino, record, links, content)?;
            }
            _ => check_links(exam, ino, record, links)?,
        }
    }
    Ok(())
}

fn content_of(names: &mut Cursor<'_>, ino: Ino) -> Result<Content> {
    names.skip_to(ino)?;
    let mut content = Content::default();
    while let Some((_, value)) = names.next_of(ino)? {
        content.names += 1;
        match Dirent::decode(&value) {
            Ok(dirent) => content.subdirectories += u64::from(dirent.kind == FileKind::Directory),
            Err(_) => content.has_unreadable = true,
        }
    }
    Ok(content)
}

fn directory(
    exam: &mut Examination<'_>,
    ino: Ino,
    mut record: InodeRecord,
    links: u64,
    content: Content,
) -> Result<()> {
    if content.has_unreadable {
        return Ok(());
    }
    if let InodeBody::Directory { entries: EntryCount::Exact(counted), .. } = &mut record.body
        && *counted != content.names
    {
        let detail = format!("it has counted {counted} names and has {}", content.names);
        *counted = content.names;
        let mut repair = Batch::new();
        put_inode(&mut repair, ino, &record);
        exam.found(&kinds::ENTRY_COUNT, Some(ino), detail, Some(repair))?;
    }
    check_links(exam, ino, record, links)
}

fn check_links(exam: &mut Examination<'_>, ino: Ino, mut record: InodeRecord, links: u64) -> Result<()> {
    // Without a name it went to lost+found, or is on record as deleted.
    if u64::from(record.links) == links || links == 0 {
        return Ok(());
    }
    let detail = format!("it has {} links on record, and {links} are right", record.links);
    let repair = u32::try_from(links).ok().map(|links| {
        record.links = links;
        let mut repair = Batch::new();
        put_inode(&mut repair, ino, &record);
        repair
    });
    exam.found(&kinds::LINK_COUNT, Some(ino), detail, repair).map(|_| ())
}
