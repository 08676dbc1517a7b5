//! Whether the supervision tree answers: what `/healthz` and `health` call alive.
//!
//! A supervisor does nothing but judge deaths, and waits for nothing that takes time. One that is silent will start
//! nothing again, so only a new process helps. The question goes to the root, which passes it on to the supervisor of
//! each queue; it costs them one message each, and the one that asks waits for a second at most.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};

use crate::queue::serve::{Order, RootAddress};
use crate::runtime::supervision::SupervisorAnswer;

/// How long the answers may take. Probes usually wait for a second or two themselves.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// A supervisor that was just started again has not heard the question: it is asked once more after this.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Room for the answers of the root and of so many queues, less one.
const ROOM: usize = 1_024;

/// The supervision tree of this node, to be asked whether it answers.
#[derive(Clone)]
pub(crate) struct Tree {
    root: RootAddress,
    /// One asks at a time, so that a mailbox that is not read grows by one message a second at most.
    turn: Arc<Mutex<()>>,
}

impl Tree {
    pub(crate) fn new(root: RootAddress) -> Self {
        Self { root, turn: Arc::default() }
    }

    /// Whether every supervisor answers within a second. A tree that has not been started yet counts as one that does.
    pub(crate) async fn answers(&self) -> bool {
        if !self.root.is_known() {
            return true;
        }
        let _turn = self.turn.lock().await;
        let asked = async {
            while !self.all_answer().await {
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
            }
        };
        tokio::time::timeout(ANSWERS_WITHIN, asked).await.is_ok()
    }

    /// Waits until each has answered; false if one of them has not heard the question.
    async fn all_answer(&self) -> bool {
        let (question, mut answers) = mpsc::channel(ROOM);
        self.root.send(Order::Answer(question));
        let (mut wanted, mut count) = (None, 0);
        while let Some(answer) = answers.recv().await {
            match answer {
                SupervisorAnswer::Root(queues) => wanted = Some(queues),
                SupervisorAnswer::Queue => count += 1,
            }
            if wanted.is_some_and(|wanted| count >= wanted.min(ROOM - 1)) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use ractor::{Actor, ActorProcessingErr, ActorRef};

    use super::*;

    /// A root that passes the question on to so many supervisors, of which so many answer; or never comes to it.
    struct Answers(Option<(usize, usize)>);

    impl Actor for Answers {
        type Msg = Order;
        type State = ();
        type Arguments = ();

        async fn pre_start(&self, _: ActorRef<Order>, (): ()) -> Result<(), ActorProcessingErr> {
            Ok(())
        }

        async fn handle(&self, _: ActorRef<Order>, order: Order, (): &mut ()) -> Result<(), ActorProcessingErr> {
            let (Order::Answer(question), Some((queues, answers))) = (order, self.0) else {
                return std::future::pending().await;
            };
            question.try_send(SupervisorAnswer::Root(queues)).unwrap();
            (0..answers).for_each(|_| question.try_send(SupervisorAnswer::Queue).unwrap());
            Ok(())
        }
    }

    async fn answers(root: Answers) -> bool {
        let (address, tree) = (RootAddress::default(), Tree::new(RootAddress::default()));
        assert!(tree.answers().await, "it starts");
        let (root, _) = Actor::spawn(None, root, ()).await.unwrap();
        address.leads_to(root.clone());
        let answers = Tree::new(address).answers().await;
        root.kill();
        answers
    }

    #[tokio::test(start_paused = true)]
    async fn a_tree_answers_only_if_each_of_its_supervisors_does() {
        assert!(answers(Answers(Some((3, 3)))).await);
        assert!(answers(Answers(Some((0, 0)))).await, "it has no queue");
        assert!(!answers(Answers(Some((3, 2)))).await, "one is missing");
        assert!(!answers(Answers(None)).await, "its root does not come to it");
    }
}
