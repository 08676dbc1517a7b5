//! Which workers get jobs, how many at once, and what becomes of a job whose worker is dead.

use std::sync::Arc;

use futures_util::FutureExt as _;
use longshore_domain::policy::QueuePolicy;
use longshore_domain::pressure::{HeldBack, Reading};
use longshore_domain::publication::Published;
use longshore_domain::{Run, Tenant};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{mpsc, oneshot};

use super::scene::{Scene, job, number};
use crate::attempt::running::{AttemptState, RunningAttempt};
use crate::queue::dispatcher::Work;
use crate::runtime::Unpoisoned as _;

/// Hands on what it is sent.
struct Worker;

impl Actor for Worker {
    type Msg = Work;
    type State = mpsc::UnboundedSender<Work>;
    type Arguments = mpsc::UnboundedSender<Work>;

    async fn pre_start(&self, _: ActorRef<Work>, given: Self::State) -> Result<Self::State, ActorProcessingErr> {
        Ok(given)
    }

    async fn handle(&self, _: ActorRef<Work>, work: Work, given: &mut Self::State) -> Result<(), ActorProcessingErr> {
        given.send(work)?;
        Ok(())
    }
}

/// A queue with workers. The runtime of a test has one thread, so there is one wake permit.
struct Workers {
    scene: Scene,
    given: mpsc::UnboundedReceiver<Work>,
    workers: Vec<ActorRef<Work>>,
}

impl Workers {
    async fn new(concurrency: usize) -> Self {
        let scene = Scene::new(QueuePolicy { concurrency, ..QueuePolicy::default() });
        let (gives, given) = mpsc::unbounded_channel();
        let mut workers = Vec::new();
        for number in 0..concurrency {
            let (worker, _) = Actor::spawn(None, Worker, gives.clone()).await.unwrap();
            scene.queue.add_worker(number, worker.clone());
            workers.push(worker);
        }
        Self { scene, given, workers }
    }

    async fn next(&mut self) -> Work {
        self.given.recv().await.unwrap()
    }

    async fn end(self) {
        for worker in self.workers {
            worker.stop_and_wait(None, None).await.unwrap();
        }
    }
}

/// Given more jobs and idle workers than threads, when they are dispatched, then one worker is woken for the first job,
/// and the next one as soon as that one waits.
#[tokio::test]
async fn as_many_workers_are_woken_as_can_run_at_once_and_each_that_waits_wakes_another() {
    let mut workers = Workers::new(3).await;
    let queue = Arc::clone(&workers.scene.queue);
    workers.scene.arrive([job("here", 5, 1), job("here", 1, 2), job("here", 5, 3)]);
    queue.dispatch();
    queue.dispatch();
    assert_eq!((queue.idle.count(), queue.running(), workers.scene.held()), (2, 1, (2, 0)));
    let Work { assignment: first, permit } = workers.next().await;
    assert_eq!(number(&first), 2, "the most urgent one");
    let (mut permit, (answer, question)) = (Some(permit), oneshot::channel::<()>());
    let mut waits = Box::pin(queue.while_running(&mut permit, question));
    assert!(waits.as_mut().now_or_never().is_none());
    let second = workers.next().await;
    assert_eq!((number(&second.assignment), queue.running()), (1, 2));
    answer.send(()).unwrap();
    waits.await.unwrap();
    assert!(permit.is_none(), "it goes on without");
    assert!(!queue.wake_permits.is_one_left(), "the second has it");
    workers.end().await;
}

#[tokio::test]
async fn a_worker_that_need_not_wait_keeps_its_permit() {
    let mut workers = Workers::new(2).await;
    let queue = Arc::clone(&workers.scene.queue);
    workers.scene.arrive([job("here", 5, 1), job("here", 5, 2)]);
    queue.dispatch();
    let mut permit = Some(workers.next().await.permit);
    queue.while_running(&mut permit, async {}).await;
    assert_eq!((permit.is_some(), queue.running()), (true, 1), "the worker takes the next job itself");
    workers.end().await;
}

#[tokio::test]
async fn if_the_permits_are_with_handlers_that_block_the_other_workers_are_woken_all_the_same() {
    let mut workers = Workers::new(3).await;
    let queue = Arc::clone(&workers.scene.queue);
    workers.scene.arrive((1..=4).map(|number| job("here", 5, number)));
    queue.dispatch();
    let _blocked = workers.next().await;
    queue.dispatch_all();
    let mut woken = [number(&workers.next().await.assignment), number(&workers.next().await.assignment)];
    woken.sort_unstable();
    assert_eq!((woken, queue.running(), workers.scene.held()), ([2, 3], 3, (1, 0)), "no worker is left for the fourth");
    workers.end().await;
}

#[tokio::test]
async fn without_a_job_that_may_start_the_workers_stay_idle_and_the_permit_stays() {
    let mut workers = Workers::new(2).await;
    let queue = Arc::clone(&workers.scene.queue);
    queue.dispatch_all();
    assert_eq!((queue.running(), queue.idle.count(), queue.wake_permits.is_one_left()), (0, 2, true));
    workers.scene.closing.cancel();
    workers.scene.arrive([job("here", 5, 1)]);
    queue.dispatch_all();
    assert_eq!((queue.running(), queue.load().concurrency), (0, 0), "a closing queue has no capacity");
    assert!(workers.given.try_recv().is_err());
    workers.end().await;
}

/// Given a worker that died and was not replaced yet, when it is given a job, then the job goes back, its permit is
/// free and another worker gets the next job.
#[tokio::test]
async fn the_job_of_a_dead_worker_goes_back_and_the_next_worker_gets_the_next_job() {
    let mut workers = Workers::new(2).await;
    let queue = Arc::clone(&workers.scene.queue);
    // The one that was busy last is taken first.
    workers.workers.pop().unwrap().stop_and_wait(None, None).await.unwrap();
    workers.scene.arrive([job("here", 5, 1), job("here", 5, 2)]);
    queue.dispatch();
    assert_eq!(workers.scene.given_back(), ["1"]);
    assert_eq!(queue.idle.count(), 0, "both were given one");
    assert_eq!(number(&workers.next().await.assignment), 2);
    workers.end().await;
}

#[tokio::test]
async fn a_worker_that_dies_with_its_permit_gives_it_back_and_notifies_the_scheduler() {
    let mut workers = Workers::new(2).await;
    let queue = Arc::clone(&workers.scene.queue);
    workers.scene.arrive([job("here", 5, 1)]);
    queue.dispatch();
    let work = workers.next().await;
    assert!(queue.wake_permits.dropped.notified().now_or_never().is_none() && !queue.wake_permits.is_one_left());
    drop(work);
    assert!(queue.wake_permits.is_one_left() && queue.wake_permits.dropped.notified().now_or_never().is_some());
    assert_eq!(workers.scene.given_back(), ["1"], "its job goes back as well");
    workers.end().await;
}

#[tokio::test]
async fn on_a_machine_short_of_memory_fewer_workers_have_jobs_and_one_always() {
    let mut workers = Workers::new(4).await;
    let queue = Arc::clone(&workers.scene.queue);
    let short = |memory| workers.scene.pressure.set(HeldBack { cpu: 0, memory }, Reading::default());
    workers.scene.arrive((1..=9).map(|number| job("here", 5, number)));
    short(1);
    queue.dispatch_all();
    assert_eq!(queue.running(), 2, "one in two");
    assert!(queue.is_crowded(0) && !queue.is_crowded(1), "the one that asks may take another job");
    short(6);
    assert!(queue.is_crowded(1), "one of the two has to stop");
    short(0);
    queue.dispatch_all();
    assert_eq!((queue.running(), queue.is_crowded(0)), (4, false));
    while workers.given.try_recv().is_ok() {}
    workers.end().await;

    let workers = Workers::new(4).await;
    workers.scene.pressure.set(HeldBack { cpu: 0, memory: 6 }, Reading::default());
    workers.scene.arrive([job("here", 5, 1), job("here", 5, 2)]);
    workers.scene.queue.dispatch_all();
    assert_eq!(workers.scene.queue.running(), 1, "one works always");
    workers.end().await;
}

#[tokio::test]
async fn the_load_counts_attempts_by_priority_and_tenant_and_names_the_oldest_waiting_job() {
    let workers = Workers::new(2).await;
    let (scene, queue) = (&workers.scene, &workers.scene.queue);
    let assignment = scene.read(&job("here", 2, 1));
    let run = Run::new(&assignment.job, 3, assignment.since);
    let state = AttemptState::new(Box::new(run), 0, Published::nothing(), false);
    let current = queue.place(0).current;
    *current.lock().unpoisoned() = Some(RunningAttempt::new(assignment, state));
    scene.arrive([job("here", 9, 5), job("here", 5, 6)]);
    let load = queue.load();
    assert_eq!((load.concurrency, load.running), (2, 0), "no worker was taken from the idle ones");
    assert_eq!(load.by_priority, [0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(load.by_tenant.keys().collect::<Vec<_>>(), [&Tenant::default_tenant()]);
    assert_eq!(load.oldest_buffered, Some(longshore_domain::Timestamp::from_millis(1_000_005)));
    queue.replace_place(0);
    assert_eq!(queue.load().by_priority, [0; 9], "the attempt of a replaced worker counts no more");
    workers.end().await;
}
