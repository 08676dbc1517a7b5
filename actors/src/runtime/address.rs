//! Control messages: what is sent to or asked of a part of the tree while it runs, beside the jobs. Never a message per
//! job.
//!
//! A part has an enum of them. Who may send it has its [`Address`], which outlives the part: it is the same after the
//! part died and was started again. The part reads its messages from a [`Mailbox`] of its own life.
//!
//! A mailbox is mortal. So a message is either news of something that is kept elsewhere, which a part reads as it
//! starts ([`Address::send`]), or a question, which is asked again if the part dies over it ([`Address::ask`]).
//!
//! Bounds: [`QUEUED`] messages; beyond that news are dropped, and questions get no answer.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ractor::rpc::CallResult;
use ractor::{ActorRef, RpcReplyPort};
use tokio::sync::{mpsc, watch};

/// Messages that wait for a part.
const QUEUED: usize = 64;

/// What the actor receives that a part lives in ([`crate::runtime::supervision`]).
#[derive(Debug)]
pub(crate) enum KeeperMessage<M> {
    /// For the part: it is passed on.
    Sent(M),
    /// The part's loop has ended, which it never should by itself.
    Ended(String),
}

/// Where the messages of a part go. Cheap to clone.
#[derive(Debug)]
pub(crate) struct Address<M>(Arc<watch::Sender<Option<Started<M>>>>);

/// A part in its present life: its actor, and the way into its mailbox.
#[derive(Debug)]
struct Started<M> {
    actor: ActorRef<KeeperMessage<M>>,
    /// Weak: with its actor a loop's mailbox ends.
    mailbox: mpsc::WeakSender<M>,
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> Default for Address<M> {
    /// The address of a part that is still to be started.
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl<M: Send + 'static> Address<M> {
    /// The part was started, in this actor and with this mailbox.
    pub(crate) fn leads_to(&self, actor: ActorRef<KeeperMessage<M>>, mailbox: mpsc::WeakSender<M>) {
        self.0.send_replace(Some(Started { actor, mailbox }));
    }

    /// Sends the part a message. If the part is dead, it is lost: the part reads what holds as it starts again.
    pub(crate) fn send(&self, message: M) {
        if let Some(Started { actor, .. }) = &*self.0.borrow() {
            let _ = actor.cast(KeeperMessage::Sent(message));
        }
    }

    /// How many messages wait for the part: a part that reads has none, but for a moment.
    pub(crate) fn waiting(&self) -> usize {
        let mailbox = self.0.borrow().as_ref().and_then(|started| started.mailbox.upgrade());
        mailbox.map_or(0, |mailbox| mailbox.max_capacity() - mailbox.capacity())
    }

    /// The part's name, and how many messages wait for it whenever that is asked.
    pub(crate) fn counted(&self, part: &'static str) -> Waiting {
        let address = self.clone();
        (part, Box::new(move || address.waiting()))
    }

    /// Asks the part, and its successor if it dies over the question; `None`: there was no answer within that time.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        within: Duration,
        question: impl Fn(RpcReplyPort<T>) -> M,
    ) -> Option<T> {
        let mut started = self.0.subscribe();
        let asked = async {
            loop {
                let actor = started.borrow_and_update().as_ref().map(|started| started.actor.clone());
                if let Some(actor) = actor {
                    let answer = actor.call(|reply| KeeperMessage::Sent(question(reply)), None).await;
                    if let Ok(CallResult::Success(answer)) = answer {
                        return Some(answer);
                    }
                }
                started.changed().await.ok()?;
            }
        };
        tokio::time::timeout(within, asked).await.ok().flatten()
    }
}

/// A part that has messages, and how many wait for it.
pub(crate) type Waiting = (&'static str, Box<dyn Fn() -> usize + Send + Sync>);

/// The messages of a part, from its start to its end.
#[derive(Debug)]
pub(crate) struct Mailbox<M>(mpsc::Receiver<M>);

impl<M> Mailbox<M> {
    /// A mailbox, and where messages are put into it.
    pub(crate) fn new() -> (mpsc::Sender<M>, Self) {
        let (put, messages) = mpsc::channel(QUEUED);
        (put, Self(messages))
    }

    pub(crate) async fn next(&mut self) -> M {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The next message, if there is one.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<M> {
        match self.0.poll_recv(context) {
            Poll::Ready(Some(message)) => Poll::Ready(message),
            // Without its actor a loop is about to end.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ractor::{Actor, ActorProcessingErr, SupervisionEvent};

    use super::*;
    use crate::runtime::supervision::{ChildSpec, LoopEnd};

    /// Starts its child again whenever it dies.
    struct Supervisor;

    impl Actor for Supervisor {
        type Msg = ();
        type State = ChildSpec;
        type Arguments = ChildSpec;

        async fn pre_start(&self, myself: ActorRef<()>, child: ChildSpec) -> Result<ChildSpec, ActorProcessingErr> {
            child.start(myself.get_cell()).await?;
            Ok(child)
        }

        async fn handle_supervisor_evt(
            &self,
            myself: ActorRef<()>,
            event: SupervisionEvent,
            child: &mut ChildSpec,
        ) -> Result<(), ActorProcessingErr> {
            if let SupervisionEvent::ActorFailed(..) = event {
                child.start(myself.get_cell()).await?;
            }
            Ok(())
        }
    }

    enum Message {
        /// How many such loops were started, this one included.
        Which(RpcReplyPort<usize>),
        Die,
    }

    /// In its first life the loop dies over the first question.
    async fn fragile(lives: Arc<AtomicUsize>, mut mailbox: Mailbox<Message>) -> LoopEnd {
        let life = lives.fetch_add(1, Ordering::SeqCst) + 1;
        loop {
            match mailbox.next().await {
                Message::Which(_) if life == 1 => panic!("at the first question"),
                Message::Which(reply) => drop(reply.send(life)),
                Message::Die => return Err("asked to".to_owned()),
            }
        }
    }

    const SOON: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_question_that_a_part_dies_over_is_answered_by_the_next_one() {
        let (address, lives) = (Address::default(), Arc::new(AtomicUsize::new(0)));
        let spec = ChildSpec::with_messages("fragile", &address, Arc::clone(&lives), fragile);
        // Asked before the part is there.
        let asking = tokio::spawn({
            let address = address.clone();
            async move { address.ask(SOON, Message::Which).await }
        });
        let (root, _) = Actor::spawn(None, Supervisor, spec).await.unwrap();
        assert_eq!(asking.await.unwrap(), Some(2));
        address.send(Message::Die);
        assert_eq!(address.ask(SOON, Message::Which).await, Some(3), "the address leads to the third");
        root.stop_and_wait(None, None).await.unwrap();
    }

    #[tokio::test]
    async fn without_a_part_there_is_no_answer() {
        let address = Address::default();
        address.send(Message::Die);
        assert_eq!(address.ask(Duration::from_millis(20), Message::Which).await, None);
    }

    async fn unread(_: (), _mailbox: Mailbox<Message>) -> LoopEnd {
        std::future::pending().await
    }

    #[tokio::test]
    async fn messages_that_wait_for_a_part_are_counted() {
        let address = Address::default();
        assert_eq!(address.waiting(), 0, "there is no part");
        let spec = ChildSpec::with_messages("unread", &address, (), unread);
        let (root, _) = Actor::spawn(None, Supervisor, spec).await.unwrap();
        for _ in 0..3 {
            address.send(Message::Die);
        }
        let counted = async {
            while address.waiting() < 3 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, counted).await.unwrap();
        for _ in 0..2 * QUEUED {
            address.send(Message::Die);
        }
        let filled = async {
            while address.waiting() < QUEUED {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, filled).await.unwrap();
        root.stop_and_wait(None, None).await.unwrap();
        assert_eq!(address.waiting(), 0, "its mailbox ended with it");
    }

    #[tokio::test]
    async fn a_part_that_does_not_read_costs_no_more_than_its_mailbox() {
        let (put, mut mailbox) = Mailbox::new();
        assert_eq!((0..2 * QUEUED).filter(|news| put.try_send(*news).is_ok()).count(), QUEUED);
        assert_eq!(mailbox.next().await, 0);
    }
}
