//! Looking at what may not answer.
//!
//! **Invariant: what does not answer holds up only this.** A look at a file system may take for ever (a lost network mount, a
//! broken disk), so a short-lived thread takes it, and as long as that has not come back there is no second one and no value.

use std::time::Duration;

use tokio::sync::oneshot;

/// How long a sample waits for the answer; usually it takes less than a thousandth of that.
const PATIENCE: Duration = Duration::from_millis(200);
/// The smallest stack that is sure to do: paths of mounts lie on the heap.
const STACK_BYTES: usize = 128 * 1024;

/// A look that is taken now and then; remembers whether there is an answer to come.
#[derive(Debug)]
pub(super) struct Look<T> {
    /// What is looked at, for the log.
    what: &'static str,
    asked: Option<oneshot::Receiver<T>>,
}

impl<T: Default + Send + 'static> Look<T> {
    pub(super) fn at(what: &'static str) -> Self {
        Self { what, asked: None }
    }

    /// What is seen now; nothing if it does not answer.
    pub(super) async fn take(&mut self, look: impl FnOnce() -> T + Send + 'static) -> T {
        // What comes too late is old by then.
        let is_open =
            |asked: &mut oneshot::Receiver<T>| matches!(asked.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        if self.asked.as_mut().is_some_and(is_open) {
            return T::default();
        }
        let (answer, mut asked) = oneshot::channel();
        let look = move || {
            // Nobody waits any more if the agent ends.
            let _ = answer.send(look());
        };
        let thread = std::thread::Builder::new().name("look".to_owned()).stack_size(STACK_BYTES).spawn(look);
        if let Err(error) = thread {
            tracing::warn!(%error, "no thread to look at {}", self.what);
        }
        if let Ok(seen) = tokio::time::timeout(PATIENCE, &mut asked).await {
            self.asked = None;
            seen.unwrap_or_default()
        } else {
            tracing::warn!("one of {} does not answer. hint: look for mounts that hang, with `df`", self.what);
            self.asked = Some(asked);
            T::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_hangs_is_asked_once() {
        let (late, asked) = oneshot::channel();
        let mut look = Look { what: "disks", asked: Some(asked) };
        for _ in 0..3 {
            assert_eq!(look.take(|| 7).await, 0, "the first question is still open");
        }
        late.send(1).unwrap();
        assert_eq!(look.take(|| 7).await, 7, "what came late is old");
    }

    #[tokio::test]
    async fn nobody_waits_for_long() {
        let (go_on, wait) = std::sync::mpsc::channel();
        let mut look = Look::at("disks");
        let hangs = move || {
            wait.recv().unwrap();
            7
        };
        assert_eq!(look.take(hangs).await, 0);
        assert_eq!(look.take(|| 8).await, 0);
        go_on.send(()).unwrap();
        while look.take(|| 9).await != 9 {
            tokio::task::yield_now().await;
        }
    }
}
