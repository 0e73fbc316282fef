//! Another process that has a file in memory, shared, and loads and stores there.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// It asks for a lease and takes none, so that the daemon counts it among the programs that can use leases: their uses of the file do not begin a pause.
const PROGRAM: &str = "import fcntl, mmap, struct, sys
file = open(sys.argv[1], 'r+b', buffering=0)
fcntl.ioctl(file, 0xc040d701, bytearray(struct.pack('<II', 2, 1) + bytes(56)))
memory = mmap.mmap(file.fileno(), 0)
answers = sys.stdout.buffer
answers.write(b'ready\\n')
answers.flush()
for line in iter(sys.stdin.buffer.readline, b''):
    command, offset, length = line.split()
    offset, length = int(offset), int(length)
    if command == b'load':
        answers.write(memory[offset:offset + length])
    else:
        memory[offset:offset + length] = sys.stdin.buffer.read(length)
        answers.write(b'.')
    answers.flush()
";

/// The process; killed when it is dropped.
pub struct Mapper {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Mapper {
    pub fn start(path: &Path) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 starts");
        let commands = child.stdin.take().expect("it has one");
        let mut answers = BufReader::new(child.stdout.take().expect("it has one"));
        let mut line = String::new();
        answers.read_line(&mut line).expect("it answers");
        assert_eq!(line, "ready\n");
        Self { child, commands, answers }
    }

    pub fn load(&mut self, offset: usize, length: usize) -> Vec<u8> {
        writeln!(self.commands, "load {offset} {length}").and_then(|()| self.commands.flush()).expect("asked");
        let mut bytes = vec![0; length];
        self.answers.read_exact(&mut bytes).expect("it answers");
        bytes
    }

    pub fn store(&mut self, offset: usize, bytes: &[u8]) {
        writeln!(self.commands, "store {offset} {}", bytes.len()).expect("asked");
        self.commands.write_all(bytes).and_then(|()| self.commands.flush()).expect("sent");
        self.answers.read_exact(&mut [0]).expect("it answers");
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
