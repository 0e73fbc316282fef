//! Fair shares between streams: the waiting pieces of a tier, object by object in turns.
//!
//! Invariants: the object whose turn it is continues for [`TURN_BYTES`], so that a device that seeks does not seek at each
//! piece; then the next object follows, however much of the first is left. The pieces of one object go in order of arrival.

use std::collections::{HashMap, VecDeque};

use polymux_tier::ObjectRef;

/// Bytes of one turn: more than a piece, and a few ten milliseconds of a disk.
const TURN_BYTES: u64 = 4 << 20;

/// A piece waiting to go to a device.
pub(super) trait Waiting {
    /// The stream that it belongs to.
    fn object(&self) -> ObjectRef;
    fn bytes(&self) -> u64;
}

/// Everything that waits on one tier.
pub(super) struct Turns<T> {
    by_object: HashMap<ObjectRef, VecDeque<T>>,
    /// Objects of which something waits, whose turn it is first.
    order: VecDeque<ObjectRef>,
    /// Bytes left of the present turn.
    turn_left: u64,
    length: usize,
}

impl<T: Waiting> Turns<T> {
    pub(super) fn new() -> Self {
        Self { by_object: HashMap::new(), order: VecDeque::new(), turn_left: TURN_BYTES, length: 0 }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn push(&mut self, piece: T) {
        let object = piece.object();
        let of_object = self.by_object.entry(object).or_default();
        if of_object.is_empty() {
            self.order.push_back(object);
        }
        of_object.push_back(piece);
        self.length += 1;
    }

    /// The one that [`Turns::pop`] takes.
    pub(super) fn first(&self) -> Option<&T> {
        self.by_object.get(self.order.front()?)?.front()
    }

    /// Takes the next one.
    pub(super) fn pop(&mut self) -> Option<T> {
        let object = *self.order.front()?;
        let of_object = self.by_object.get_mut(&object)?;
        let piece = of_object.pop_front()?;
        self.length -= 1;
        self.turn_left = self.turn_left.saturating_sub(piece.bytes());
        let is_last = of_object.is_empty();
        if is_last {
            self.by_object.remove(&object);
        }
        if is_last || self.turn_left == 0 {
            self.order.pop_front();
            self.turn_left = TURN_BYTES;
            if !is_last {
                self.order.push_back(object);
            }
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use polymux_types::{Bucket, ObjectId};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A piece of a stream, with its number in it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Part(u64, u64, u64);

    impl Waiting for Part {
        fn object(&self) -> ObjectRef {
            ObjectRef::new(ObjectId(self.0), Bucket(0))
        }

        fn bytes(&self) -> u64 {
            self.2
        }
    }

    fn taken(turns: &mut Turns<Part>, count: usize) -> Vec<Part> {
        (0..count).map_while(|_| turns.pop()).collect()
    }

    #[test]
    fn a_stream_with_much_waiting_holds_up_one_with_little_for_one_turn_only() {
        let mut turns = Turns::new();
        (0..1000).for_each(|number| turns.push(Part(1, number, MIB)));
        assert_eq!(turns.pop(), Some(Part(1, 0, MIB)));
        (0..3).for_each(|number| turns.push(Part(2, number, MIB)));
        let others_first = taken(&mut turns, 1000).iter().position(|part| part.0 == 2);
        assert_eq!(others_first, Some(3), "the turn that had begun is ended");
    }

    #[test]
    fn streams_that_always_have_something_waiting_get_the_same_bytes() {
        for sizes in [[MIB, MIB, MIB], [MIB, 64 << 10, 2 * MIB]] {
            let mut turns = Turns::new();
            let mut bytes = [0; 3];
            for (stream, size) in (0_u64..).zip(sizes) {
                (0..2000).for_each(|number| turns.push(Part(stream, number, size)));
            }
            for _ in 0..300 {
                let part = turns.pop().expect("something waits");
                bytes[usize::try_from(part.0).expect("small")] += part.2;
            }
            let (least, most) = (bytes.iter().min().expect("three"), bytes.iter().max().expect("three"));
            assert!(most - least <= TURN_BYTES, "{bytes:?} of {sizes:?}");
        }
    }

    #[test]
    fn everything_comes_out_once_and_each_stream_in_its_order() {
        let mut turns = Turns::new();
        (0..500).for_each(|number| turns.push(Part(number % 7, number, MIB * (number % 3))));
        assert_eq!((turns.len(), turns.first().copied()), (500, Some(Part(0, 0, 0))));
        let all = taken(&mut turns, 1000);
        assert_eq!((all.len(), turns.len(), turns.pop()), (500, 0, None));
        for stream in 0..7 {
            let numbers: Vec<u64> = all.iter().filter(|part| part.0 == stream).map(|part| part.1).collect();
            assert!(numbers.is_sorted() && numbers.len() >= 71, "{numbers:?}");
        }
    }
}
