//! Programs that people run, on a volume that has spilled over both tiers.

mod mounted;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mounted::command::shell;
use mounted::tree::{difference, snapshot};
use mounted::{Plan, Random, TestVolume, have_program, one_at_a_time, skip};

/// A volume whose fast tier has little free space, so that new data lies on both. Nothing moves on it, because a mover
/// would free space by taking the ballast away; programs beside moves have tests of their own (`mounted_migration`).
fn start(programs: &[&str], room_mebibytes: usize) -> Option<TestVolume> {
    if let Some(missing) = programs.iter().find(|program| !have_program(program)) {
        skip(&format!("{missing} is not installed"));
        return None;
    }
    let volume = TestVolume::start_without_movers(&Plan::anywhere().with_fast_capacity("16 MiB"))?;
    // In small files, which every policy keeps on one tier.
    let ballast = volume.path().join("ballast");
    fs::create_dir(&ballast).unwrap();
    for (number, part) in Random::new(1).bytes((16 - room_mebibytes) << 20).chunks(64 << 10).enumerate() {
        fs::write(ballast.join(number.to_string()), part).unwrap();
    }
    Some(volume)
}

/// Smaller files live in the metadata store, on no tier.
const INLINE_SIZE_MAX: u64 = 4096;

/// Asserts that files below a directory use space on both tiers.
fn assert_spilled(volume: &TestVolume, directory: &Path) {
    let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
    let mut pending = vec![directory.to_path_buf()];
    let mut asked = 0;
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                pending.push(entry.path());
            } else if entry.metadata().unwrap().len() > INLINE_SIZE_MAX && asked < 2_000 {
                asked += 1;
                for (tier, more) in volume.bytes_per_tier(&entry.path()) {
                    *bytes.entry(tier).or_default() += more;
                }
            }
            if bytes.values().filter(|bytes| **bytes > 0).count() >= 2 {
                return;
            }
        }
    }
    panic!("nothing has spilled: {bytes:?}");
}

#[test]
fn an_sqlite_database_stays_whole_under_load() {
    let _turn = one_at_a_time();
    let Some(mut volume) = start(&["python3"], 4) else { return };
    let script = r#"
import os, random, sqlite3, sys
def connect():
    db = sqlite3.connect("data.db", timeout=60)
    assert db.execute("PRAGMA journal_mode=WAL").fetchone()[0] == "wal"
    db.execute("PRAGMA mmap_size=67108864")
    return db
db = connect()
db.execute("CREATE TABLE entries (id INTEGER PRIMARY KEY, worker INTEGER, amount INTEGER, payload BLOB)")
db.execute("CREATE INDEX by_worker ON entries (worker, amount)")
db.commit(); db.close()
pids = []
for worker in range(4):
    pid = os.fork()
    if pid == 0:
        rng = random.Random(worker)
        db = connect()
        for n in range(300):
            with db:
                db.execute("BEGIN IMMEDIATE")
                for _ in range(5):
                    db.execute("INSERT INTO entries (worker, amount, payload) VALUES (?, ?, ?)", (worker, 1, rng.randbytes(rng.randrange(100, 6000))))
                if n % 7 == 0:
                    db.execute("UPDATE entries SET payload = ? WHERE id = (SELECT min(id) FROM entries WHERE worker = ?)", (rng.randbytes(20000), worker))
            if n % 50 == 0:
                db.execute("SELECT sum(length(payload)) FROM entries").fetchone()
        db.close()
        os._exit(0)
    pids.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
"#;
    let check = r#"
import sqlite3
db = sqlite3.connect("data.db")
assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
assert db.execute("SELECT worker, sum(amount) FROM entries GROUP BY worker").fetchall() == [(w, 1500) for w in range(4)]
"#;
    let [load, verify] = [("load.py", script), ("check.py", check)].map(|(name, text)| {
        let path = volume.outside().join(name);
        fs::write(&path, text).unwrap();
        format!("python3 {}", path.display())
    });
    let directory = volume.path().join("sqlite");
    fs::create_dir(&directory).unwrap();
    shell(&directory, &load);
    shell(&directory, &verify);
    volume.assert_is_split(&directory.join("data.db"));
    volume.unmount();
    volume.mount();
    shell(&directory, &verify);
}

#[test]
fn a_repository_is_cloned_checked_and_repacked() {
    let _turn = one_at_a_time();
    let Some(mut volume) = start(&["git"], 10) else { return };
    let origin = volume.outside().join("origin");
    fs::create_dir(&origin).unwrap();
    let mut random = Random::new(9);
    for number in 0..3_000_u64 {
        let directory = origin.join(format!("part {}", number / 100));
        fs::create_dir_all(&directory).unwrap();
        let length = usize::try_from(random.below(6_000)).unwrap();
        fs::write(directory.join(format!("file {number}.txt")), random.bytes(length)).unwrap();
    }
    let identity = "-c user.name=test -c user.email=test@example.org";
    shell(&origin, &format!("git init -q; git add -A; git {identity} commit -qm one"));
    shell(&origin, &format!("git mv 'part 1' moved; git {identity} commit -qm two"));
    shell(volume.path(), &format!("git clone -q 'file://{}' clone", origin.display()));
    let clone = volume.path().join("clone");
    shell(
        &clone,
        "git fsck --full --strict; test -z \"$(git status --porcelain)\"; test $(git ls-files | wc -l) = 3000",
    );
    assert_spilled(&volume, &clone);
    shell(&clone, &format!("git checkout -qb other HEAD^; echo x > new; git add new; git {identity} commit -qm three"));
    shell(&clone, "git repack -adq; git fsck --full");
    volume.unmount();
    volume.mount();
    shell(&clone, "git fsck --full; test -z \"$(git status --porcelain)\"");
    shell(
        volume.outside(),
        &format!(
            "git -C '{}' checkout -q HEAD^{{/two}} 2>/dev/null || git -C '{}' checkout -q origin/HEAD; diff -r --exclude=.git --exclude=new origin '{}'",
            clone.display(),
            clone.display(),
            clone.display()
        ),
    );
}

#[test]
fn an_unpacked_source_tree_is_what_was_packed() {
    let _turn = one_at_a_time();
    let Some(mut volume) = start(&["tar"], 4) else { return };
    let source = Path::new("/usr/include/linux");
    if !source.is_dir() {
        return skip("/usr/include/linux is not there");
    }
    let outside = volume.outside().to_path_buf();
    shell(&outside, "tar -C /usr/include -cf tree.tar linux; mkdir native; tar -C native -xpf tree.tar");
    shell(volume.path(), &format!("mkdir tree; tar -C tree -xpf {}/tree.tar", outside.display()));
    let expected = snapshot(&outside.join("native"));
    assert!(expected.len() > 500, "the tree is too small to show anything: {}", expected.len());
    let tree = volume.path().join("tree");
    assert_eq!(difference(&expected, &snapshot(&tree)), None);
    shell(&tree, &format!("tar --compare -f {}/tree.tar", outside.display()));
    assert_spilled(&volume, &tree);
    volume.unmount();
    volume.mount();
    assert_eq!(difference(&expected, &snapshot(&tree)), None);
}

#[test]
fn a_project_is_built_in_parallel() {
    let _turn = one_at_a_time();
    let Some(volume) = start(&["make", "gcc"], 2) else { return };
    let project = volume.path().join("project");
    fs::create_dir(&project).unwrap();
    const PARTS: usize = 60;
    let mut main = String::from("#include <stdio.h>\n");
    for part in 0..PARTS {
        let body = format!(
            "#include \"parts.h\"\nchar data{part}[50000] = {{1}};\nint part{part}(int x) {{ return x + {part}; }}\n"
        );
        fs::write(project.join(format!("part{part}.c")), body).unwrap();
        main += &format!("int part{part}(int);\n");
    }
    let calls: String = (0..PARTS).map(|part| format!("x = part{part}(x); ")).collect();
    main += &format!("int main(void) {{ int x = 0; {calls} printf(\"%d\\n\", x); return 0; }}\n");
    fs::write(project.join("main.c"), main).unwrap();
    fs::write(project.join("parts.h"), "#include <stdlib.h>\n#include <string.h>\n").unwrap();
    let makefile = "OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: $(OBJECTS)\n\tgcc -o $@ $^\n%.o: %.c parts.h\n\tgcc -O1 -g -c -o $@ $<\n";
    fs::write(project.join("Makefile"), makefile).unwrap();
    shell(&project, "make -j4 -s");
    assert_eq!(shell(&project, "./program").trim(), (0..PARTS).sum::<usize>().to_string());
    assert!(shell(&project, "make -j4").contains("up to date"), "times of files tell make that nothing is to be done");
    shell(&project, "touch part7.c; make -j4 | grep -c 'gcc -O1' | grep -qx 1; ./program > /dev/null");
    assert_spilled(&volume, &project);
}
