//! Runs a chain.
//!
//! A journalled run continues after a crash. The results of its calls and the ends of its waits are
//! records, which the node keeps under the keys of their steps. The interpreter begins again at the
//! first task and takes each result from its record, so everything between two records must give
//! the same result each time. For this reason, expressions cannot read the time, random pauses are
//! recorded, and each branch of a `fork` has its own context.
//!
//! Errors are recorded only where a `catch` handles them. A failed run can therefore be tried
//! again, and it then continues with the step that failed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{self, LocalBoxFuture};
use futures_util::stream::{self, FuturesUnordered, StreamExt as _, TryStreamExt as _};

use crate::answers::cut;
use crate::document::{Chain, Delay, For, Shape, Task, Then, Work};
use crate::expression::{
    Expression, Template, Val, from_json, get, int_of, is_true, object, text_of, to_json,
};
use crate::host::{Error, Host, Stop};
use crate::reader::parse_delay;

/// The most tasks that one run may execute.
const EXECUTED_MAX: u32 = 100_000;
/// A journalled run that has nothing to do but wait for at least this long gives up its place until
/// then.
const SUSPEND_AFTER_MS: u64 = 1_000;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The run has ended with this output.
    Done(Val),
    Failed(Error),
    /// The run continues at this time, in milliseconds since 1970.
    Suspended(u64),
    /// The attempt failed for a reason outside the chain.
    Broken(String),
}

/// The state with which an attempt begins.
#[derive(Debug, Default)]
pub struct Beginning {
    pub id: String,
    /// When the run began, in milliseconds since 1970.
    pub began_ms: u64,
    pub input: Val,
    /// The records that earlier attempts have kept.
    pub records: HashMap<String, Val>,
}

/// Runs one attempt.
pub async fn run<H: Host>(chain: &Chain, host: &H, beginning: Beginning) -> Outcome {
    let Beginning { id, began_ms, input, records } = beginning;
    let workflow = object([
        ("id", Val::from(id)),
        ("definition", from_json(&chain.definition)),
        ("input", input.clone()),
        ("startedAt", moment(began_ms)),
    ]);
    let runtime = object([
        ("name", Val::from("mote".to_owned())),
        ("version", Val::from(env!("CARGO_PKG_VERSION").to_owned())),
    ]);
    let run = Run {
        chain,
        host,
        records: RefCell::new(records),
        workflow,
        runtime,
        began_ms,
        active: Cell::new(0),
        timers: RefCell::default(),
        executed: Cell::new(0),
        wants_again: Cell::new(false),
    };
    let mut whole = pin!(run.whole(input));
    future::poll_fn(|cx| {
        if let Poll::Ready(ended) = whole.as_mut().poll(cx) {
            return Poll::Ready(match ended {
                Ok(output) => Outcome::Done(output),
                Err(Stop::Error(error)) => Outcome::Failed(error),
                Err(Stop::Broken(text)) => Outcome::Broken(text),
            });
        }
        if host.is_journalled() && run.active.get() == 0 {
            if run.wants_again.get() {
                return Poll::Ready(Outcome::Suspended(host.now_ms()));
            }
            let next = run.timers.borrow().keys().next().copied();
            if let Some(next) = next.filter(|next| *next >= host.now_ms() + SUSPEND_AFTER_MS) {
                return Poll::Ready(Outcome::Suspended(next));
            }
        }
        Poll::Pending
    })
    .await
}

/// A time in the form that the language defines.
fn moment(unix_ms: u64) -> Val {
    let iso = jiff::Timestamp::from_millisecond(unix_ms as i64).unwrap_or_default().to_string();
    let epoch = object([
        ("seconds", Val::from((unix_ms / 1_000) as isize)),
        ("milliseconds", Val::from(unix_ms as isize)),
    ]);
    object([("iso8601", Val::from(iso)), ("epoch", epoch)])
}

#[derive(Clone)]
pub(crate) struct Scope {
    context: Rc<RefCell<Val>>,
    /// The variables of loops and of caught errors, from the outermost to the innermost.
    variables: Vec<Val>,
    /// When the next timeout around the current task ends, in milliseconds since 1970.
    pub(crate) deadline_ms: Option<u64>,
}

impl Scope {
    pub(crate) fn with(&self, more: impl IntoIterator<Item = Val>) -> Self {
        let mut scope = self.clone();
        scope.variables.extend(more);
        scope
    }

    /// The scope of a branch, which has its own context.
    fn branch(&self) -> Self {
        Self { context: Rc::new(RefCell::new(self.context.borrow().clone())), ..self.clone() }
    }

    pub(crate) fn until(&self, deadline_ms: u64) -> Self {
        let deadline_ms = self.deadline_ms.map_or(deadline_ms, |known| known.min(deadline_ms));
        Self { deadline_ms: Some(deadline_ms), ..self.clone() }
    }
}

#[derive(Clone)]
pub(crate) struct Place {
    /// The place in the file, as a JSON pointer.
    pub(crate) pointer: String,
    /// The key under which results are recorded. It consists of the names of tasks and the numbers
    /// of iterations and attempts.
    pub(crate) key: String,
}

impl Place {
    pub(crate) fn below(&self, pointer: &str, key: &str) -> Self {
        Self { pointer: format!("{}{pointer}", self.pointer), key: format!("{}{key}", self.key) }
    }
}

/// How a list of tasks ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The list is complete, and the tasks after it run.
    Through,
    Run,
}

pub(crate) struct Run<'a, H> {
    chain: &'a Chain,
    pub(crate) host: &'a H,
    records: RefCell<HashMap<String, Val>>,
    workflow: Val,
    runtime: Val,
    began_ms: u64,
    /// The number of requests to the host that are in progress.
    active: Cell<usize>,
    /// The end times of waits and timeouts, each with the number of those that end at this time.
    timers: RefCell<BTreeMap<u64, usize>>,
    executed: Cell<u32>,
    pub(crate) wants_again: Cell<bool>,
}

/// What the expressions of one task see.
pub(crate) struct Sight<'s> {
    pub(crate) scope: &'s Scope,
    pub(crate) input: Val,
    pub(crate) output: Val,
    pub(crate) task: Val,
}

/// A timer that is registered until this value is dropped.
struct Timer<'t>(&'t RefCell<BTreeMap<u64, usize>>, u64);

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let mut timers = self.0.borrow_mut();
        if let Some(count) = timers.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                timers.remove(&self.1);
            }
        }
    }
}

/// A request to the host. It counts as in progress until this value is dropped.
pub(crate) struct Active<'c>(&'c Cell<usize>);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

pub(crate) type Step<'f, T> = LocalBoxFuture<'f, Result<T, Stop>>;

impl<H: Host> Run<'_, H> {
    async fn whole(&self, raw: Val) -> Result<Val, Stop> {
        let scope = Scope {
            context: Rc::new(RefCell::new(object([]))),
            variables: Vec::new(),
            deadline_ms: None,
        };
        let place = Place { pointer: String::new(), key: String::new() };
        let sight = Sight { scope: &scope, input: raw.clone(), output: Val::Null, task: Val::Null };
        let input = self.transform(&self.chain.input, raw, &sight, &place, true)?;
        let sight = Sight { input: input.clone(), ..sight };
        let timeout = self.delay(self.chain.timeout.as_ref(), &sight, &input, &place)?;
        let tasks = |scope: Scope, place: Place| async move {
            self.list(&self.chain.tasks, input, &scope, place.below("/do", "")).await
        };
        let (output, _) = match timeout {
            None => tasks(scope.clone(), place.clone()).await?,
            Some(span) => {
                let until = self.began_ms + span.as_millis() as u64;
                self.within(until, &place, tasks(scope.until(until), place.clone())).await?
            }
        };
        let sight = Sight { output: output.clone(), ..sight };
        self.transform(&self.chain.output, output, &sight, &place, false)
    }

    /// Applies a schema and a transformation. An input is checked before its transformation, an
    /// output after it.
    fn transform(
        &self,
        shape: &Shape,
        value: Val,
        sight: &Sight<'_>,
        place: &Place,
        schema_first: bool,
    ) -> Result<Val, Stop> {
        if schema_first {
            check(shape, &value, place)?;
        }
        let value = match &shape.transform {
            Some(template) => self.template(template, &value, sight, place)?,
            None => value,
        };
        if !schema_first {
            check(shape, &value, place)?;
        }
        Ok(value)
    }

    fn variables(&self, sight: &Sight<'_>) -> Vec<Val> {
        let mut all = vec![
            sight.scope.context.borrow().clone(),
            sight.input.clone(),
            sight.output.clone(),
            sight.task.clone(),
            self.workflow.clone(),
            self.runtime.clone(),
        ];
        all.extend(sight.scope.variables.iter().cloned());
        all
    }

    pub(crate) fn template(
        &self,
        template: &Template,
        data: &Val,
        sight: &Sight<'_>,
        place: &Place,
    ) -> Result<Val, Stop> {
        if let Template::Constant(value) = template {
            return Ok(value.clone());
        }
        let result = template.evaluate(data, &self.variables(sight));
        result.map_err(|text| unusable(text, place))
    }

    fn expression(
        &self,
        expression: &Expression,
        data: &Val,
        sight: &Sight<'_>,
        place: &Place,
    ) -> Result<Val, Stop> {
        let result = expression.evaluate(data.clone(), self.variables(sight));
        result.map_err(|text| unusable(text, place))
    }

    pub(crate) fn holds(
        &self,
        condition: Option<&Expression>,
        default: bool,
        data: &Val,
        sight: &Sight<'_>,
        place: &Place,
    ) -> Result<bool, Stop> {
        match condition {
            None => Ok(default),
            Some(condition) => Ok(is_true(&self.expression(condition, data, sight, place)?)),
        }
    }

    pub(crate) fn delay(
        &self,
        delay: Option<&Delay>,
        sight: &Sight<'_>,
        data: &Val,
        place: &Place,
    ) -> Result<Option<Duration>, Stop> {
        match delay {
            None => Ok(None),
            Some(Delay::Fixed(span)) => Ok(Some(*span)),
            Some(Delay::Expression(expression)) => {
                let value = self.expression(expression, data, sight, place)?;
                let text = text_of(&value).unwrap_or_else(|| value.to_string());
                parse_delay(&text).map(Some).map_err(|text| unusable(text, place))
            }
        }
    }

    /// Runs a future with a time limit that ends at `until_ms`.
    pub(crate) async fn within<T>(
        &self,
        until_ms: u64,
        place: &Place,
        work: impl Future<Output = Result<T, Stop>>,
    ) -> Result<T, Stop> {
        let timer = self.timer(until_ms);
        let left = Duration::from_millis(until_ms.saturating_sub(self.host.now_ms()));
        let ended = tokio::time::timeout(left, work).await;
        drop(timer);
        ended.unwrap_or_else(|_| {
            Err(at(Error::new("timeout", 408, "Timeout", "the time for it is over"), place))
        })
    }

    fn timer(&self, until_ms: u64) -> Timer<'_> {
        *self.timers.borrow_mut().entry(until_ms).or_default() += 1;
        Timer(&self.timers, until_ms)
    }

    pub(crate) fn active(&self) -> Active<'_> {
        self.active.set(self.active.get() + 1);
        Active(&self.active)
    }

    pub(crate) fn recorded(&self, key: &str) -> Option<Val> {
        self.records.borrow().get(key).cloned()
    }

    /// Keeps a record. In a run that is not journalled, nothing is recorded.
    pub(crate) async fn record(&self, key: &str, value: Val) -> Result<(), Stop> {
        if self.host.is_journalled() {
            let json = to_json(&value).map_err(Stop::Broken)?.to_string();
            let _active = self.active();
            self.host.record(key, json).await?;
            self.records.borrow_mut().insert(key.to_owned(), value);
        }
        Ok(())
    }

    /// A time that is chosen once and recorded, so that it stays the same when the run continues.
    pub(crate) async fn moment_of(
        &self,
        key: &str,
        choose: impl FnOnce() -> u64,
    ) -> Result<u64, Stop> {
        let known = self.recorded(key).and_then(|known| get(&known, "until").and_then(int_of));
        if let Some(known) = known {
            return Ok(known as u64);
        }
        let chosen = choose();
        self.record(key, object([("until", Val::from(chosen as isize))])).await?;
        Ok(chosen)
    }

    /// Runs tasks one after another.
    pub(crate) fn list<'f>(
        &'f self,
        tasks: &'f [Task],
        input: Val,
        scope: &'f Scope,
        place: Place,
    ) -> Step<'f, (Val, Ended)> {
        async move {
            let mut data = input;
            let mut visits: HashMap<usize, u32> = HashMap::new();
            let mut next = 0;
            while let Some(task) = tasks.get(next) {
                let visit = visits.entry(next).or_default();
                *visit += 1;
                let again = if *visit > 1 { format!("#{visit}") } else { String::new() };
                let slash = if place.key.is_empty() { "" } else { "/" };
                let place = place.below(
                    &format!("/{next}/{}", task.name),
                    &format!("{slash}{}{again}", task.name),
                );
                let (output, then) = self.task(task, data, scope, place).await?;
                data = output;
                match then {
                    Then::Continue => next += 1,
                    Then::Exit => break,
                    Then::End => return Ok((data, Ended::Run)),
                    Then::Task(at) => next = at,
                }
            }
            Ok((data, Ended::Through))
        }
        .boxed_local()
    }

    async fn task(
        &self,
        task: &Task,
        raw: Val,
        scope: &Scope,
        place: Place,
    ) -> Result<(Val, Then), Stop> {
        self.executed.set(self.executed.get() + 1);
        if self.executed.get() > EXECUTED_MAX {
            let text =
                format!("the run has executed {EXECUTED_MAX} tasks, which looks like a loop");
            return Err(at(Error::new("runtime", 500, "Too many tasks", text), &place));
        }
        // A run that executes many tasks without waiting must let other runs continue.
        if self.executed.get().is_multiple_of(64) {
            let _active = self.active();
            tokio::task::yield_now().await;
        }
        let described = object([
            ("name", Val::from(task.name.clone())),
            ("reference", Val::from(place.pointer.clone())),
            ("input", raw.clone()),
        ]);
        let sight = Sight { scope, input: raw.clone(), output: Val::Null, task: described };
        if !self.holds(task.condition.as_ref(), true, &raw, &sight, &place)? {
            return Ok((raw, Then::Continue));
        }
        let input = self.transform(&task.input, raw, &sight, &place, true)?;
        let sight = Sight { input: input.clone(), ..sight };
        let timeout = self.delay(task.timeout.as_ref(), &sight, &input, &place)?;
        let (raw_output, then) = match timeout {
            None => self.work(task, input.clone(), &sight, scope, &place).await?,
            Some(span) => {
                let span = span.as_millis() as u64;
                let key = format!("{}@", place.key);
                let until = self.moment_of(&key, || self.host.now_ms() + span).await?;
                let scope = scope.until(until);
                let work = self.work(task, input.clone(), &sight, &scope, &place);
                self.within(until, &place, work).await?
            }
        };
        let sight = Sight { output: raw_output.clone(), ..sight };
        let output = self.transform(&task.output, raw_output, &sight, &place, false)?;
        if task.export.transform.is_some() {
            let sight = Sight { output: output.clone(), ..sight };
            let context = self.transform(&task.export, output.clone(), &sight, &place, false)?;
            *scope.context.borrow_mut() = context;
        }
        Ok((output, then.unwrap_or_else(|| task.then.clone())))
    }

    /// Does the work of a task. Also returns where the chain continues, if that differs from the
    /// task's `then`.
    fn work<'f>(
        &'f self,
        task: &'f Task,
        input: Val,
        sight: &'f Sight<'f>,
        scope: &'f Scope,
        place: &'f Place,
    ) -> Step<'f, (Val, Option<Then>)> {
        let ended = |(output, ended): (Val, Ended)| match ended {
            Ended::Through => (output, None),
            Ended::Run => (output, Some(Then::End)),
        };
        async move {
            Ok(match &task.work {
                Work::Call(call) => (self.call(call, input, sight, scope, place).await?, None),
                Work::Publish(template) => {
                    (self.publish(template, input, sight, place).await?, None)
                }
                Work::Do(tasks) => {
                    ended(self.list(tasks, input, scope, place.below("/do", "")).await?)
                }
                Work::For(each) => ended(self.each(each, input, sight, scope, place).await?),
                Work::Fork { branches, compete } => {
                    (self.fork(branches, *compete, input, scope, place).await?, None)
                }
                Work::Raise(template) => {
                    let error = Error::of_value(&self.template(template, &input, sight, place)?);
                    return Err(at(error, place));
                }
                Work::Set(template) => (self.template(template, &input, sight, place)?, None),
                Work::Switch(cases) => {
                    let mut chosen = None;
                    for (when, then) in cases.iter().filter(|(when, _)| when.is_some()) {
                        if self.holds(when.as_ref(), true, &input, sight, place)? {
                            chosen = Some(then.clone());
                            break;
                        }
                    }
                    let default = || {
                        cases.iter().find(|(when, _)| when.is_none()).map(|(_, then)| then.clone())
                    };
                    (input, chosen.or_else(default))
                }
                Work::Try { tasks, catch } => {
                    ended(self.attempts(tasks, catch, input, sight, scope, place).await?)
                }
                Work::Wait(delay) => {
                    let span = self.delay(Some(delay), sight, &input, place)?.unwrap_or_default();
                    self.wait(&place.key, span).await?;
                    (input, None)
                }
            })
        }
        .boxed_local()
    }

    pub(crate) async fn wait(&self, key: &str, span: Duration) -> Result<(), Stop> {
        let span = span.as_millis() as u64;
        let until = self.moment_of(key, || self.host.now_ms() + span).await?;
        let left = until.saturating_sub(self.host.now_ms());
        if left > 0 {
            let _timer = self.timer(until);
            tokio::time::sleep(Duration::from_millis(left)).await;
        }
        Ok(())
    }

    async fn each(
        &self,
        each: &For,
        input: Val,
        sight: &Sight<'_>,
        scope: &Scope,
        place: &Place,
    ) -> Result<(Val, Ended), Stop> {
        let items = match self.expression(&each.list, &input, sight, place)? {
            Val::Arr(items) => items,
            other => {
                let text = format!("`in` is not a list but {}", cut(&other.to_string(), 80));
                return Err(unusable(text, place));
            }
        };
        let numbered = items.iter().cloned().enumerate();
        let place_of = |number: usize| place.below("/do", &format!("[{number}]"));
        if let Some(most) = each.parallel {
            let iterations = numbered.map(|(number, item)| {
                let scope = scope.branch().with([item, Val::from(number)]);
                let input = input.clone();
                async move {
                    let done = self.list(&each.tasks, input, &scope, place_of(number)).await?;
                    Ok::<_, Stop>(done.0)
                }
            });
            let outputs: Vec<Val> = stream::iter(iterations).buffered(most).try_collect().await?;
            return Ok((outputs.into_iter().collect(), Ended::Through));
        }
        let mut data = input;
        for (number, item) in numbered {
            let scope = scope.with([item, Val::from(number)]);
            let sight = Sight {
                scope: &scope,
                input: sight.input.clone(),
                output: Val::Null,
                task: sight.task.clone(),
            };
            if !self.holds(each.condition.as_ref(), true, &data, &sight, place)? {
                break;
            }
            let (output, ended) = self.list(&each.tasks, data, &scope, place_of(number)).await?;
            data = output;
            if ended == Ended::Run {
                return Ok((data, ended));
            }
        }
        Ok((data, Ended::Through))
    }

    async fn fork(
        &self,
        branches: &[Task],
        compete: bool,
        input: Val,
        scope: &Scope,
        place: &Place,
    ) -> Result<Val, Stop> {
        let branch = |number: usize| {
            let task = &branches[number];
            let scope = scope.branch();
            let input = input.clone();
            let place = place.below(
                &format!("/fork/branches/{number}/{}", task.name),
                &format!("/{}", task.name),
            );
            async move { Ok::<_, Stop>(self.task(task, input, &scope, place).await?.0) }
        };
        if !compete {
            let outputs = future::try_join_all((0..branches.len()).map(branch)).await?;
            return Ok(outputs.into_iter().collect());
        }
        let key = format!("{}=", place.key);
        let known = self.recorded(&key).and_then(|known| get(&known, "winner").and_then(int_of));
        if let Some(number) = known.filter(|number| (0..branches.len() as i64).contains(number)) {
            return branch(number as usize).await;
        }
        let mut racing: FuturesUnordered<_> = (0..branches.len())
            .map(|number| branch(number).map(move |done| (number, done)).boxed_local())
            .collect();
        let mut last = None;
        let (number, output) = loop {
            match (racing.next().await, last.take()) {
                (Some((number, Ok(output))), _) => break (number, output),
                (Some((_, Err(Stop::Error(error)))), _) => last = Some(Stop::Error(error)),
                // This attempt cannot continue, so it must not wait for the other branches, which
                // may never end.
                (Some((_, Err(broken))), _) => return Err(broken),
                (None, Some(error)) => return Err(error),
                (None, None) => return Ok(input),
            }
        };
        self.record(&key, object([("winner", Val::from(number))])).await?;
        Ok(output)
    }
}

/// Sets the place of an error that has no place yet.
pub(crate) fn at(mut error: Error, place: &Place) -> Stop {
    if error.instance.is_empty() {
        error.instance.clone_from(&place.pointer);
    }
    Stop::Error(error)
}

pub(crate) fn placed(stop: Stop, place: &Place) -> Stop {
    match stop {
        Stop::Error(error) => at(error, place),
        broken => broken,
    }
}

pub(crate) fn unusable(text: String, place: &Place) -> Stop {
    at(Error::new("expression", 400, "Expression failed", cut(&text, 500)), place)
}

fn check(shape: &Shape, value: &Val, place: &Place) -> Result<(), Stop> {
    let Some(schema) = &shape.schema else { return Ok(()) };
    let json = to_json(value).map_err(|text| unusable(text, place))?;
    match schema.0.validate(&json) {
        Ok(()) => Ok(()),
        Err(error) => {
            let text = format!("{error} (at {:?})", error.instance_path().to_string());
            Err(at(
                Error::new("validation", 400, "Data do not match the schema", cut(&text, 500)),
                place,
            ))
        }
    }
}
