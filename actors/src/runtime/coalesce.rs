//! Lets a task that many others wake work in larger rounds.
//!
//! A task that is woken runs next on the thread that woke it, ahead of everything else that is ready there. So a task
//! that many others feed works in rounds of one or two: it handles the first input, wakes another task itself, and is
//! woken again. Each round ends with a system call at the connection, so small rounds are expensive.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Runs `future`; if it had to wait, lets everything that is ready by then run first, once, so that more input has
/// arrived. Costs one poll per wait, no time.
pub(crate) async fn coalesced<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut woken = false;
    poll_fn(|context| {
        if std::mem::take(&mut woken) {
            // A task that wakes itself goes to the end of its thread's queue.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = future.as_mut().poll(context);
        woken = polled.is_pending();
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_ready_goes_first() {
        let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
        let gathering = tokio::spawn(async move {
            let first: Option<u32> = coalesced(receive.recv()).await;
            let rest: Vec<u32> = std::iter::from_fn(|| receive.try_recv().ok()).collect();
            (first, rest)
        });
        tokio::task::yield_now().await; // it waits now
        send.send(1).unwrap();
        let more = send.clone();
        tokio::spawn(async move { more.send(2).unwrap() });
        assert_eq!(gathering.await.unwrap(), (Some(1), vec![2]));
        drop(send);
    }

    #[tokio::test]
    async fn what_is_there_is_taken_at_once() {
        assert_eq!(coalesced(std::future::ready(7)).await, 7);
    }
}
