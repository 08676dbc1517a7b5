//! The start of an attempt, as it is published.

use std::sync::PoisonError;

use crate::attempt::running::{InWork, Slot};
use crate::commit::Story;
use crate::commit::committer::Telling;
use crate::commit::encode::Lines;
use crate::shared::Shared;

/// Publishes the start of the attempt in the slot, live and, where it is on record, in the log.
pub(crate) async fn announce(shared: &Shared, slot: &Slot) {
    let (lines, story) = {
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(InWork { assignment, course, .. }) = slot.as_mut() else { return };
        let lines = Lines::of(&course.run, course.published, &shared.node, shared.backbone.names());
        course.published = course.published.after_live(lines.count(), course.on_record);
        if course.on_record {
            course.lines = None;
            let for_the_log = match std::mem::take(&mut course.progress) {
                none if none.is_empty() => lines.for_the_log(),
                progress => lines.for_the_log().followed_by(&progress),
            };
            (lines, Some((course.run.clone(), assignment.matter.clone(), for_the_log)))
        } else {
            course.lines = Some(lines.for_the_log());
            (lines, None)
        }
    };
    for (subject, body) in lines.live() {
        shared.backbone.tell_part(subject, body).await;
    }
    if let Some((run, matter, lines)) = story {
        let story = Story::telling(run, matter, lines);
        shared.herald.tell(Telling::Story(Box::new(story))).await;
    }
}
