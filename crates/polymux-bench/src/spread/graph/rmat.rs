//! An R-MAT graph in CSR form: for each vertex in turn the vertices that its edges lead to.
//!
//! Properties:
//! * The same scale and seed make the same graph, whatever the number of threads.
//! * Each edge is a word of 64 bits: below, the vertex it leads to; above, a mark that follows from both of its vertices. So a reader
//!   sees whether an edge is the one that it asked for.
//! * Probabilities are those of Graph 500 (0.57, 0.19, 0.19, 0.05); vertices are numbered anew by chance, as there, so that those with
//!   many edges do not lie side by side.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::noise::{Noise, shuffled};

/// Bytes of an edge.
pub const EDGE_BYTES: u64 = 8;

/// Vertices are numbers of 32 bits.
const VERTEX_MASK: u64 = 0xffff_ffff;

/// Sixteenths of 65,536 below which an edge is in the first, second and third quarter of the remaining part.
const QUARTERS: [u64; 3] = [37_355, 49_807, 62_259];

/// Where the edges of each vertex begin; one more than there are vertices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    starts: Vec<u32>,
}

/// How large a graph is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Two to this power vertices.
    pub scale: u32,
    /// Edges for each of them.
    pub edges_of_vertex: u64,
    /// Seed.
    pub seed: u64,
}

impl Shape {
    /// Vertices.
    #[must_use]
    pub const fn vertices(&self) -> u64 {
        1 << self.scale
    }

    /// Edges.
    #[must_use]
    pub const fn edges(&self) -> u64 {
        self.vertices() * self.edges_of_vertex
    }

    /// An edge by its number.
    fn edge(&self, number: u64) -> (u64, u64) {
        let mut noise = Noise::new(self.seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        let (mut from, mut to, mut bits) = (0, 0, 0_u64);
        for level in 0..self.scale {
            // Sixteen bits of chance for each level.
            bits = if level % 4 == 0 { noise.next_number() } else { bits >> 16 };
            let chance = bits & 0xffff;
            let quarter = QUARTERS.iter().filter(|limit| chance >= **limit).count() as u64;
            from = from << 1 | quarter >> 1;
            to = to << 1 | quarter & 1;
        }
        (from, to)
    }
}

/// The word of an edge.
fn word(from: u64, to: u64) -> u64 {
    mark(from, to) << 32 | to
}

fn mark(from: u64, to: u64) -> u64 {
    Noise::new(from << 32 | to).next_number() >> 32
}

/// Makes the graph in a file, durably, and returns the index.
///
/// # Errors
/// Whatever the file system reports; a graph that is too large.
pub fn write_file(shape: &Shape, path: &Path) -> Result<Index> {
    ensure!(shape.edges() <= VERTEX_MASK && shape.scale <= 31, "the graph is too large");
    let names = shuffled(shape.vertices(), shape.seed);
    let named = |vertex: u64| names[usize::try_from(vertex).unwrap_or(0)];
    let mut starts = vec![0_u32; usize::try_from(shape.vertices())? + 1];
    for number in 0..shape.edges() {
        starts[usize::try_from(named(shape.edge(number).0))? + 1] += 1;
    }
    for vertex in 1..starts.len() {
        starts[vertex] += starts[vertex - 1];
    }
    let mut next = starts.clone();
    let mut targets = vec![0_u32; usize::try_from(shape.edges())?];
    for number in 0..shape.edges() {
        let (from, to) = shape.edge(number);
        let place = &mut next[usize::try_from(named(from))?];
        targets[usize::try_from(*place)?] = u32::try_from(named(to))?;
        *place += 1;
    }
    let index = Index { starts };
    let file = File::create(path).with_context(|| path.display().to_string())?;
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    for vertex in 0..shape.vertices() {
        let (first, count) = index.edges_of(vertex);
        for target in &targets[usize::try_from(first)?..usize::try_from(first + count)?] {
            writer.write_all(&word(vertex, u64::from(*target)).to_le_bytes())?;
        }
    }
    let file = writer.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(index)
}

impl Index {
    /// Vertices.
    #[must_use]
    pub fn vertices(&self) -> u64 {
        self.starts.len().saturating_sub(1) as u64
    }

    /// Number of the first edge of a vertex, and how many it has.
    #[must_use]
    pub fn edges_of(&self, vertex: u64) -> (u64, u64) {
        let at = usize::try_from(vertex).unwrap_or(usize::MAX);
        match (self.starts.get(at), self.starts.get(at.saturating_add(1))) {
            (Some(first), Some(end)) => (u64::from(*first), u64::from(end - first)),
            _ => (0, 0),
        }
    }

    /// Where an edge of a vertex leads to, from the word that was read.
    ///
    /// # Errors
    /// Where it is no edge of that vertex.
    pub fn follow(&self, vertex: u64, word_read: u64) -> Result<u64> {
        let to = word_read & VERTEX_MASK;
        ensure!(word_read == word(vertex, to) && to < self.vertices(), "{word_read:#x} is no edge of vertex {vertex}");
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Shape = Shape { scale: 10, edges_of_vertex: 16, seed: 7 };

    #[test]
    fn the_same_seed_makes_the_same_graph_and_another_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let one = write_file(&SMALL, &path("one")).unwrap();
        assert_eq!(one, write_file(&SMALL, &path("two")).unwrap());
        let read = |name: &str| std::fs::read(path(name)).unwrap();
        assert_eq!(read("one"), read("two"));
        assert_eq!(read("one").len() as u64, SMALL.edges() * EDGE_BYTES);
        write_file(&Shape { seed: 8, ..SMALL }, &path("three")).unwrap();
        assert_ne!(read("one"), read("three"));
    }

    #[test]
    fn every_edge_is_found_with_its_vertex_and_degrees_are_skewed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("graph");
        let index = write_file(&SMALL, &path).unwrap();
        let words = std::fs::read(path).unwrap();
        let word_at = |edge: u64| {
            let at = usize::try_from(edge * EDGE_BYTES).unwrap();
            u64::from_le_bytes(words[at..at + 8].try_into().unwrap())
        };
        let (mut edges, mut most) = (0, 0);
        for vertex in 0..index.vertices() {
            let (first, count) = index.edges_of(vertex);
            assert_eq!(first, edges);
            (0..count).for_each(|edge| assert!(index.follow(vertex, word_at(first + edge)).is_ok()));
            (edges, most) = (edges + count, most.max(count));
        }
        assert_eq!(edges, SMALL.edges());
        assert!(most > 10 * SMALL.edges_of_vertex, "the largest degree is {most}");
        assert!(index.follow(1, word_at(index.edges_of(2).0)).is_err());
    }
}
