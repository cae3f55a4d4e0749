//! What waits to go up to guard-core: bounded, in order, and honest about what it had to drop.
//!
//! Observations are kept until guard-core says that they are in the audit file, and sent again when the line broke before.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use guard_proto::v1::{self, from_daemon::Message, observation::Act};
use tokio::sync::Notify;

/// Observations that may wait while guard-core is away or behind; about 30 MiB at most.
const CAPACITY: usize = 65_536;

/// The queue between the threads that see things and the task that sends them.
#[derive(Default)]
pub struct Outbox {
    inner: Mutex<Inner>,
    arrived: Notify,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Message>,
    /// Sent and not yet acknowledged.
    sent: VecDeque<v1::Observations>,
    /// Observations in both queues.
    observations: usize,
    dropped: u64,
    numbered: u64,
}

impl Outbox {
    /// Queues observations; when too many wait, the new ones are counted instead of kept.
    pub fn observe(&self, items: Vec<v1::Observation>) {
        if items.is_empty() {
            return;
        }
        let mut inner = self.lock();
        if inner.observations + items.len() > CAPACITY {
            inner.dropped += items.len() as u64;
        } else {
            inner.observations += items.len();
            inner.push(items);
        }
        drop(inner);
        self.arrived.notify_one();
    }

    /// Queues a reply or another message that must not be dropped.
    pub fn send(&self, message: Message) {
        self.lock().waiting.push_back(message);
        self.arrived.notify_one();
    }

    /// The next message; waits for one.
    pub async fn next(&self) -> Message {
        loop {
            let arrived = self.arrived.notified();
            if let Some(message) = self.take() {
                return message;
            }
            arrived.await;
        }
    }

    /// Everything up to `number` is in the audit file.
    pub fn acknowledge(&self, number: u64) {
        let mut inner = self.lock();
        while inner.sent.front().is_some_and(|batch| batch.number <= number) {
            let count = inner.sent.pop_front().map_or(0, |batch| batch.items.len());
            inner.observations = inner.observations.saturating_sub(count);
        }
    }

    /// The line broke: what was not acknowledged goes first on the next one.
    pub fn rewind(&self) {
        let mut inner = self.lock();
        while let Some(batch) = inner.sent.pop_back() {
            inner.waiting.push_front(Message::Observations(batch));
        }
        drop(inner);
        self.arrived.notify_one();
    }

    fn take(&self) -> Option<Message> {
        let mut inner = self.lock();
        if inner.waiting.is_empty() && inner.dropped > 0 {
            let count = std::mem::take(&mut inner.dropped);
            inner.observations += 1;
            inner.push(vec![loss(count)]);
        }
        let message = inner.waiting.pop_front()?;
        if let Message::Observations(batch) = &message {
            inner.sent.push_back(batch.clone());
        }
        Some(message)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn push(&mut self, items: Vec<v1::Observation>) {
        self.numbered += 1;
        let number = self.numbered;
        self.waiting.push_back(Message::Observations(v1::Observations { items, number }));
    }
}

fn loss(count: u64) -> v1::Observation {
    v1::Observation {
        time_ns: u64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(0),
        effect: "none".to_owned(),
        mechanism: "guardd outbox".to_owned(),
        strength: "observed".to_owned(),
        act: Some(Act::Loss(v1::Loss { class: "outbox".to_owned(), count, first_seq: 0, last_seq: 0 })),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_does_not_fit_is_counted_and_told_after_the_rest() {
        let outbox = Outbox::default();
        outbox.observe(vec![v1::Observation::default(); CAPACITY]);
        outbox.observe(vec![v1::Observation::default(); 7]);
        let Message::Observations(first) = outbox.next().await else { panic!("observations") };
        assert_eq!(first.items.len(), CAPACITY);
        let Message::Observations(told) = outbox.next().await else { panic!("a loss") };
        let Some(Act::Loss(loss)) = &told.items[0].act else { panic!("a loss: {told:?}") };
        assert_eq!(loss.count, 7);
    }

    #[tokio::test]
    async fn what_was_not_acknowledged_is_sent_again_in_order() {
        let outbox = Outbox::default();
        for _ in 0..3 {
            outbox.observe(vec![v1::Observation::default()]);
        }
        for _ in 0..3 {
            outbox.next().await;
        }
        outbox.acknowledge(1);
        outbox.rewind();
        let mut numbers = Vec::new();
        for _ in 0..2 {
            let Message::Observations(batch) = outbox.next().await else { panic!("observations") };
            numbers.push(batch.number);
        }
        assert_eq!(numbers, [2, 3]);
    }
}
