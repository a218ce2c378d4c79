//! Buffers that exist only while they are needed: ten thousand idle connections hold none.
//!
//! - [`ScratchBuffer`]: a large buffer of the thread, lent for the length of one call
//! - [`LazyQueue`]: bytes that have to outlive a call, in memory of their own until the last of them is gone

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

use bytes::Buf;

/// The size of a scratch buffer: a whole TLS record (16,640 bytes at most) after the largest possible rest of the
/// previous read.
pub(crate) const SCRATCH_BYTES: usize = 36 * 1024;

/// Buffers that a thread keeps: TLS needs one, WebSocket over it another at the same time, and both while they are read
/// and written in one call.
const SPARE_MAX: usize = 4;

thread_local! {
    static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of [`SCRATCH_BYTES`], with arbitrary old content. It returns to its thread on drop.
pub(crate) struct ScratchBuffer(Box<[u8]>);

impl ScratchBuffer {
    pub(crate) fn new() -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        Self(spare.unwrap_or_else(|| vec![0; SCRATCH_BYTES].into_boxed_slice()))
    }
}

impl Drop for ScratchBuffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        // The thread may be ending.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(buffer);
            }
        });
    }
}

impl Deref for ScratchBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for ScratchBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// A queue of bytes that has no memory while it is empty.
#[derive(Debug, Default)]
pub(crate) struct LazyQueue {
    bytes: Vec<u8>,
    start: usize,
}

impl LazyQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.compact(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds `count` bytes for the caller to fill.
    pub(crate) fn grow(&mut self, count: usize) -> &mut [u8] {
        self.compact(count);
        let end = self.bytes.len();
        self.bytes.resize(end + count, 0);
        self.bytes.get_mut(end..).unwrap_or_default()
    }

    /// Moves the bytes to the front if there is no room for more behind them.
    fn compact(&mut self, more: usize) {
        if self.start > 0 && self.bytes.len() + more > self.bytes.capacity() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Buf for LazyQueue {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        self.as_slice()
    }

    fn advance(&mut self, count: usize) {
        self.start += count.min(self.len());
        if self.start == self.bytes.len() {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn scratch_buffers_are_reused() {
        let addresses = || {
            let (a, b) = (ScratchBuffer::new(), ScratchBuffer::new());
            assert_eq!((a.len(), b.len()), (SCRATCH_BYTES, SCRATCH_BYTES));
            let mut both = [a.as_ptr() as usize, b.as_ptr() as usize];
            both.sort_unstable();
            both
        };
        assert_eq!(addresses(), addresses());
    }

    proptest! {
        #[test]
        fn queued_bytes_keep_their_order(steps in prop::collection::vec((0..3, 0_usize..40), 0..60)) {
            let mut kept = LazyQueue::default();
            let mut model = VecDeque::new();
            let mut next = 0_u8;
            for (step, count) in steps {
                match step {
                    0 => {
                        let bytes: Vec<u8> = (0..count).map(|_| { next = next.wrapping_add(1); next }).collect();
                        kept.push(&bytes);
                        model.extend(bytes);
                    }
                    1 => {
                        for byte in kept.grow(count) {
                            next = next.wrapping_add(1);
                            *byte = next;
                            model.push_back(next);
                        }
                    }
                    _ => {
                        kept.advance(count);
                        model.drain(..count.min(model.len()));
                    }
                }
                prop_assert_eq!(kept.as_slice(), &*model.make_contiguous());
                prop_assert_eq!(kept.is_empty(), model.is_empty());
                prop_assert!(!kept.is_empty() || kept.bytes.capacity() == 0);
            }
        }
    }
}
