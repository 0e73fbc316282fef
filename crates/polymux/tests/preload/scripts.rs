//! Scripts that read files as people's scripts do. They must print the same on a volume under the library.

/// Before each script in Python: `warm` reads slowly enough that the file gets a lease.
pub const PYTHON_PRELUDE: &str = r#"
import os, sys, hashlib
def warm(number):
    for place in range(200):
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(number, 4096, place * 37 % 1024 * 4096)
def show(what, number):
    whole = hashlib.sha256()
    for place in range(64):
        whole.update(os.pread(number, 1 + place * 1111, place * 131071))
    print(what, whole.hexdigest(), flush=True)
"#;

/// Name, whether it must be served past the mount, and text.
pub const PYTHON: &[(&str, bool, &str)] = &[
    (
        "a_child_of_multiprocessing_reads",
        true,
        r#"
import multiprocessing
def child(number): show("child", number)
table = os.open("table", os.O_RDONLY)
warm(table)
process = multiprocessing.get_context("fork").Process(target=child, args=(table,))
process.start(); process.join(); print(process.exitcode)
show("parent", table)
"#,
    ),
    (
        "a_subprocess_has_an_inherited_descriptor",
        true,
        r#"
import subprocess
table = os.open("table", os.O_RDONLY)
warm(table)
done = subprocess.run(["sh", "-c", f"cksum <&{table}"], pass_fds=[table], stdout=subprocess.PIPE)
print(done.stdout, done.returncode)
done = subprocess.run(["sh", "-c", f"cksum <&{table} 2>/dev/null"], stdout=subprocess.PIPE)
print("not inherited", done.returncode != 0)
"#,
    ),
    (
        "a_subprocess_reads_standard_input",
        true,
        r#"
import subprocess
table = os.open("table", os.O_RDONLY)
warm(table)
print(subprocess.run(["cksum"], stdin=table, stdout=subprocess.PIPE).stdout)
print(os.lseek(table, 0, os.SEEK_CUR))
show("after", table)
"#,
    ),
    (
        "objects_of_files_and_descriptors_are_mixed",
        true,
        r#"
with open("table", "rb") as table:
    number = table.fileno()
    warm(number)
    print(hashlib.sha256(table.read(100000)).hexdigest(), table.tell())
    show("all over", number)
    table.seek(5000000)
    print(hashlib.sha256(table.read()).hexdigest())
with open("other", "rb") as other:
    print(other.fileno() == number)
    show("other", other.fileno())
"#,
    ),
    (
        "threads_read_by_one_descriptor",
        true,
        r#"
import concurrent.futures
table = os.open("table", os.O_RDONLY)
warm(table)
def one(place): return hashlib.sha256(os.pread(table, 70000, place * 99991)).hexdigest()
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(hashlib.sha256("".join(pool.map(one, range(400))).encode()).hexdigest())
"#,
    ),
    (
        "a_mapping_and_reads_agree",
        true,
        r#"
import mmap
table = os.open("table", os.O_RDONLY)
warm(table)
with mmap.mmap(table, 0, prot=mmap.PROT_READ) as mapped:
    print(all(mapped[at:at + 5000] == os.pread(table, 5000, at) for at in range(0, 8000000, 99991)))
    print(hashlib.sha256(mapped).hexdigest())
"#,
    ),
    (
        "another_process_rewrites_the_file_in_place",
        true,
        r#"
import subprocess
table = os.open("table", os.O_RDONLY)
warm(table)
show("before", table)
for byte in b"xyz":
    script = f"import os; os.pwrite(os.open('table', os.O_RDWR), bytes([{byte}]) * 3000000, 1000000)"
    subprocess.run([sys.executable, "-c", script], check=True)
    show("after", table)
    warm(table)
    show("again", table)
"#,
    ),
    (
        "a_file_is_replaced_by_a_rename",
        true,
        r#"
table = os.open("table", os.O_RDONLY)
warm(table)
with open("new", "wb") as new: new.write(bytes(range(256)) * 40000)
os.replace("new", "table")
show("old", table)
again = os.open("table", os.O_RDONLY)
warm(again)
show("new", again)
os.close(table)
show("new", again)
"#,
    ),
    (
        "descriptors_are_duplicated_over_one_another",
        true,
        r#"
table, other = (os.open(name, os.O_RDONLY) for name in ("table", "other"))
warm(table); warm(other)
for round in range(4):
    kept = os.dup(table)
    os.dup2(other, table, inheritable=False)
    os.dup2(kept, other)
    os.close(kept)
    show("first", table); show("second", other)
    warm(table); warm(other)
"#,
    ),
    (
        "hundreds_of_open_files",
        true,
        r#"
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
table = os.open("table", os.O_RDONLY)
warm(table)
numbers = []
try:
    while True: numbers.append(os.open("other", os.O_RDONLY))
except OSError as error: print(error.errno)
print(len(numbers), max(numbers), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
show("table", table)
warm(numbers[-1])
show("other", numbers[-1])
os.closerange(3, 256)
table = os.open("table", os.O_RDONLY)
warm(table); show("table", table)
"#,
    ),
    (
        "a_database_is_read_and_written",
        false,
        r#"
import sqlite3
with sqlite3.connect("base") as base:
    base.execute("create table t(a integer primary key, b text)")
    base.executemany("insert into t values(?, ?)", ((n, str(n) * 50) for n in range(20000)))
base.close()
with sqlite3.connect("file:base?mode=ro", uri=True) as base:
    print(base.execute("select sum(a), count(distinct b) from t where b like '%77%'").fetchall())
    with sqlite3.connect("base") as writer: writer.execute("update t set b = 'x' where a % 3 = 0")
    print(base.execute("select count(*) from t where b = 'x'").fetchall())
os.remove("base")
"#,
    ),
];

/// Scripts in shell: name and text.
pub const SHELL: &[(&str, &str)] = &[
    (
        "copies_are_equal",
        "cp table copy && cmp table copy && dd if=table of=part bs=5k skip=100 count=300 2>/dev/null && cksum copy part && rm copy part",
    ),
    (
        "archives_are_equal",
        "tar -cf - table other sparse small empty | tar -tvf - | awk '{print $1, $3, $6}'; tar --mtime=@0 -cf - table | cksum",
    ),
    (
        "words_are_counted_and_sorted",
        "tr -cd 'a-z\\n' <table | sort | cksum; head -c 100000 other | tail -c 5000 | cksum; grep -c a table",
    ),
    (
        "descriptors_are_moved_about",
        "exec 5<table 6<other; cksum <&5; exec 5<&6; cksum <&5; exec 5<&- 6<&-; (cksum <&5) 2>/dev/null || echo closed",
    ),
    (
        "files_are_appended_and_cut",
        "cat small >>table; cksum table; truncate -s 3M table; cksum <table; cat other >table; cmp table other && echo equal",
    ),
    (
        "a_repository_is_made_and_cloned",
        "git init -q repo && cd repo && git config user.email a@b && git config user.name a && cp ../table ../small . && git add . && git commit -qm one && git gc -q && cd .. && git clone -q repo twin && cmp repo/table twin/table && git -C twin fsck --full && rm -rf repo twin",
    ),
];
