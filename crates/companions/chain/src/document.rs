//! A chain, as its file describes it. [`crate::reader`] reads the file.

use std::time::Duration;

use crate::expression::{Expression, Template};

#[derive(Debug)]
pub struct Chain {
    pub name: String,
    /// The whole file, for `$workflow.definition`.
    pub definition: serde_json::Value,
    /// What happens to its input before the first task.
    pub input: Shape,
    /// What happens to the output of the last task.
    pub output: Shape,
    /// How long a run may take.
    pub timeout: Option<Delay>,
    pub tasks: Vec<Task>,
}

/// A schema and a transformation.
#[derive(Debug, Default)]
pub struct Shape {
    /// The schema that data must match.
    pub schema: Option<Schema>,
    pub transform: Option<Template>,
}

/// A JSON schema, ready for use.
pub struct Schema(pub jsonschema::Validator);

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Schema")
    }
}

#[derive(Debug)]
pub struct Task {
    pub name: String,
    /// The line of its name.
    pub line: usize,
    /// It runs only if this holds.
    pub condition: Option<Expression>,
    /// What happens to its input.
    pub input: Shape,
    /// What happens to its output.
    pub output: Shape,
    /// What becomes of the context.
    pub export: Shape,
    /// How long it may take.
    pub timeout: Option<Delay>,
    /// What follows it.
    pub then: Then,
    pub work: Work,
}

#[derive(Debug)]
pub enum Work {
    /// Calls a function of the node.
    Call(Call),
    /// Publishes a message to an MQTT topic: a map with `topic`, `payload`, `qos`, `retain`
    /// and `contentType`.
    Publish(Template),
    /// Runs tasks one after another.
    Do(Vec<Task>),
    /// Runs tasks for each item of a list.
    For(For),
    /// Runs tasks at the same time.
    Fork {
        branches: Vec<Task>,
        /// Whether the first to end wins.
        compete: bool,
    },
    /// Fails with an error.
    Raise(Template),
    /// Makes data.
    Set(Template),
    /// Chooses what follows: a condition, or none for the default, and where it leads.
    Switch(Vec<(Option<Expression>, Then)>),
    /// Runs tasks and handles their errors.
    Try {
        tasks: Vec<Task>,
        /// What happens to an error.
        catch: Box<Catch>,
    },
    Wait(Delay),
}

#[derive(Debug)]
pub struct Call {
    pub function: String,
    /// Method, path, header fields, query: of a call over `http://mote.internal/NAME`.
    pub http: Option<Http>,
    /// The body; the task's input if there is none.
    pub body: Option<Template>,
}

/// The parts of a call that only HTTP has.
#[derive(Debug)]
pub struct Http {
    pub method: String,
    /// Path below the function.
    pub path: String,
    /// Header fields.
    pub headers: Option<Template>,
    pub query: Option<Template>,
    /// Whether the output is the whole answer, with its status and header fields.
    pub whole: bool,
}

/// A loop.
#[derive(Debug)]
pub struct For {
    pub list: Expression,
    /// Runs on while this holds.
    pub condition: Option<Expression>,
    /// The tasks of an iteration.
    pub tasks: Vec<Task>,
    /// How many iterations run at once, if they run at once; the output is then the list of their
    /// outputs.
    pub parallel: Option<usize>,
}

/// How errors are handled.
#[derive(Debug)]
pub struct Catch {
    /// The members that an error must have.
    pub filter: Option<Template>,
    /// Caught only if this holds.
    pub when: Option<Expression>,
    /// Not caught if this holds.
    pub except_when: Option<Expression>,
    /// Whether, when and how often the tasks are tried again.
    pub retry: Option<Retry>,
    /// The tasks that handle the error.
    pub tasks: Option<Vec<Task>>,
}

/// How often tasks are tried again.
#[derive(Debug)]
pub struct Retry {
    /// Tried again only if this holds.
    pub when: Option<Expression>,
    /// Not tried again if this holds.
    pub except_when: Option<Expression>,
    /// Attempts after the first; `None` for no limit.
    pub count: Option<u64>,
    /// How long attempts may go on after the first.
    pub within: Option<Delay>,
    /// How long one attempt may take.
    pub attempt: Option<Delay>,
    /// The first pause.
    pub delay: Option<Delay>,
    /// How pauses grow.
    pub backoff: Backoff,
    /// What is added to a pause at random.
    pub jitter: Option<(Delay, Delay)>,
}

/// How pauses between attempts grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backoff {
    /// They are all the same.
    Constant,
    /// The second is twice the first, the third three times.
    Linear,
    /// Each is twice the one before.
    Exponential,
}

/// A span of time.
#[derive(Debug)]
pub enum Delay {
    /// As it is written.
    Fixed(Duration),
    /// An expression with a text in ISO 8601.
    Expression(Expression),
}

/// Where a task leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// To the next task.
    Continue,
    /// Out of the list of tasks.
    Exit,
    /// To the end of the run.
    End,
    /// To another task of the same list, by its number.
    Task(usize),
}
