//! Errors that a chain handles: which ones are caught, how often tasks are tried again, and how
//! long the pauses are.

use std::time::Duration;

use crate::document::{Backoff, Catch, Delay, Retry, Task};
use crate::expression::{Val, get, int_of, object, text_of};
use crate::host::{Error, Host, Stop};
use crate::interpreter::{Ended, Place, Run, Scope, Sight};

impl<H: Host> Run<'_, H> {
    /// Runs the tasks of a `try`, and handles their errors.
    pub(crate) async fn attempts(
        &self,
        tasks: &[Task],
        catch: &Catch,
        input: Val,
        sight: &Sight<'_>,
        scope: &Scope,
        place: &Place,
    ) -> Result<(Val, Ended), Stop> {
        let mut number = 0_u64;
        loop {
            let suffix = if number == 0 { String::new() } else { format!("~{}", number + 1) };
            let key = format!("{}{suffix}", place.key);
            let caught_key = format!("{key}!");
            let error =
                match self.recorded(&caught_key).and_then(|known| get(&known, "error").cloned()) {
                    Some(error) => Error::of_value(&error),
                    None => {
                        let inner = place.below("/try", &suffix);
                        let span = match &catch.retry {
                            Some(retry) if number > 0 => {
                                self.delay(retry.attempt.as_ref(), sight, &input, place)?
                            }
                            _ => None,
                        };
                        let result = match span {
                            None => self.list(tasks, input.clone(), scope, inner).await,
                            Some(span) => {
                                let span = span.as_millis() as u64;
                                let until = self
                                    .moment_of(&format!("{key}@"), || self.host.now_ms() + span)
                                    .await?;
                                let scope = scope.until(until);
                                let list = self.list(tasks, input.clone(), &scope, inner);
                                self.within(until, place, list).await
                            }
                        };
                        match result {
                            Ok(done) => return Ok(done),
                            Err(Stop::Error(error)) => error,
                            Err(broken) => return Err(broken),
                        }
                    }
                };
            let caught = scope.with([error.value()]);
            let sight = Sight {
                scope: &caught,
                input: sight.input.clone(),
                output: Val::Null,
                task: sight.task.clone(),
            };
            if !self.catches(catch, &error, &input, &sight, place)? {
                return Err(Stop::Error(error));
            }
            if self.recorded(&caught_key).is_none() {
                self.record(&caught_key, object([("error", error.value())])).await?;
            }
            if let Some(retry) = &catch.retry
                && let Some(pause) = self.again(retry, number, &input, &sight, place, &key).await?
            {
                self.wait(&format!("{key}+"), pause).await?;
                number += 1;
                continue;
            }
            return match &catch.tasks {
                Some(tasks) => {
                    let place = place.below("/catch/do", "/catch");
                    self.list(tasks, input, &caught, place).await
                }
                None if catch.retry.is_some() => Err(Stop::Error(error)),
                None => Ok((input, Ended::Through)),
            };
        }
    }

    fn catches(
        &self,
        catch: &Catch,
        error: &Error,
        input: &Val,
        sight: &Sight<'_>,
        place: &Place,
    ) -> Result<bool, Stop> {
        if let Some(filter) = &catch.filter
            && let Val::Obj(wanted) = self.template(filter, input, sight, place)?
        {
            let found = error.value();
            for (key, wanted) in wanted.iter() {
                let Some(key) = text_of(key) else { continue };
                let matches = get(&found, &key).is_some_and(|found| {
                    found == wanted || (key == "type" && same_kind(found, wanted))
                });
                if !matches {
                    return Ok(false);
                }
            }
        }
        Ok(self.holds(catch.when.as_ref(), true, input, sight, place)?
            && !self.holds(catch.except_when.as_ref(), false, input, sight, place)?)
    }

    /// The pause before another attempt. `None` if there is no further attempt.
    async fn again(
        &self,
        retry: &Retry,
        number: u64,
        input: &Val,
        sight: &Sight<'_>,
        place: &Place,
        key: &str,
    ) -> Result<Option<Duration>, Stop> {
        if retry.count.is_some_and(|count| number >= count)
            || !self.holds(retry.when.as_ref(), true, input, sight, place)?
            || self.holds(retry.except_when.as_ref(), false, input, sight, place)?
        {
            return Ok(None);
        }
        let delay = |delay: Option<&Delay>| self.delay(delay, sight, input, place);
        let base = delay(retry.delay.as_ref())?.unwrap_or_default();
        let factor = match retry.backoff {
            Backoff::Constant => 1,
            Backoff::Linear => number as u32 + 1,
            Backoff::Exponential => 1_u32 << number.min(20),
        };
        let mut pause = base.saturating_mul(factor).min(Duration::from_secs(24 * 3_600));
        if let Some((from, to)) = &retry.jitter {
            let from = delay(Some(from))?.unwrap_or_default();
            let to = delay(Some(to))?.unwrap_or_default().max(from);
            pause += from + (to - from).mul_f64(self.host.random());
        }
        if let Some(within) = delay(retry.within.as_ref())? {
            // The time is counted from the first error.
            let within = within.as_millis() as u64;
            let first = format!("{}?", place.key);
            let until = self.moment_of(&first, || self.host.now_ms() + within).await?;
            let begins = match self.recorded(&format!("{key}+")) {
                Some(known) => get(&known, "until").and_then(int_of).unwrap_or_default() as u64,
                None => self.host.now_ms() + pause.as_millis() as u64,
            };
            if begins > until {
                return Ok(None);
            }
        }
        Ok(Some(pause))
    }
}

/// Whether two error types are the same standard error of the language. The specification writes
/// the address of an error type in two ways.
fn same_kind(found: &Val, wanted: &Val) -> bool {
    let name = |value: &Val| {
        let text = text_of(value)?;
        let rest = text.strip_prefix("https://serverlessworkflow.io/")?;
        rest.contains("errors/").then(|| rest.rsplit('/').next().map(str::to_owned))?
    };
    name(found).is_some() && name(found) == name(wanted)
}
