//! The structure of a chain, as its file describes it. [`crate::reader`] reads the file.

use std::time::Duration;

use crate::expression::{Expression, Template};

#[derive(Debug)]
pub struct Chain {
    pub name: String,
    /// The whole file as data, for `$workflow.definition`.
    pub definition: serde_json::Value,
    /// How the input is checked and transformed before the first task.
    pub input: Shape,
    /// How the output of the last task is checked and transformed.
    pub output: Shape,
    /// The time limit of a run.
    pub timeout: Option<Delay>,
    pub tasks: Vec<Task>,
}

/// A schema and a transformation.
#[derive(Debug, Default)]
pub struct Shape {
    /// The schema that the data must match.
    pub schema: Option<Schema>,
    pub transform: Option<Template>,
}

/// A compiled JSON schema.
pub struct Schema(pub jsonschema::Validator);

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Schema")
    }
}

#[derive(Debug)]
pub struct Task {
    pub name: String,
    /// The line of the task's name.
    pub line: usize,
    /// The task runs only if this condition holds.
    pub condition: Option<Expression>,
    /// How the task's input is checked and transformed.
    pub input: Shape,
    /// How the task's output is checked and transformed.
    pub output: Shape,
    /// How the task's output changes the context.
    pub export: Shape,
    /// The time limit of the task.
    pub timeout: Option<Delay>,
    /// What runs after the task.
    pub then: Then,
    pub work: Work,
}

#[derive(Debug)]
pub enum Work {
    /// Calls a function of the node.
    Call(Call),
    /// Publishes a message to an MQTT topic. The template is a map with `topic`, `payload`, `qos`,
    /// `retain` and `contentType`.
    Publish(Template),
    /// Runs tasks one after another.
    Do(Vec<Task>),
    /// Runs tasks for each item of a list.
    For(For),
    /// Runs tasks at the same time.
    Fork {
        branches: Vec<Task>,
        /// Whether the branches race, so that the first branch to end decides the output.
        compete: bool,
    },
    /// Fails with an error.
    Raise(Template),
    /// Makes the output from a template.
    Set(Template),
    /// Chooses where the chain continues. Each entry has a condition, or none for the default, and
    /// the place where it leads.
    Switch(Vec<(Option<Expression>, Then)>),
    /// Runs tasks and handles their errors.
    Try {
        tasks: Vec<Task>,
        /// How an error is handled.
        catch: Box<Catch>,
    },
    Wait(Delay),
}

#[derive(Debug)]
pub struct Call {
    pub function: String,
    /// The parts that only a call over `http://mote.internal/NAME` has: method, path, header fields
    /// and query.
    pub http: Option<Http>,
    /// The body. If it is `None`, the task's input is sent.
    pub body: Option<Template>,
}

/// The parts that only an HTTP call has.
#[derive(Debug)]
pub struct Http {
    pub method: String,
    /// The path below the function.
    pub path: String,
    pub headers: Option<Template>,
    pub query: Option<Template>,
    /// Whether the output is the whole answer, including its status and header fields.
    pub whole: bool,
}

/// A loop.
#[derive(Debug)]
pub struct For {
    pub list: Expression,
    /// The loop continues only while this condition holds.
    pub condition: Option<Expression>,
    /// The tasks of an iteration.
    pub tasks: Vec<Task>,
    /// How many iterations run at once. The output is then the list of the iterations' outputs.
    /// `None` if the iterations run one after another.
    pub parallel: Option<usize>,
}

/// How errors are handled.
#[derive(Debug)]
pub struct Catch {
    /// The members that an error must have to be caught.
    pub filter: Option<Template>,
    /// The error is caught only if this condition holds.
    pub when: Option<Expression>,
    /// The error is not caught if this condition holds.
    pub except_when: Option<Expression>,
    /// Whether, when and how often the tasks are tried again.
    pub retry: Option<Retry>,
    /// The tasks that handle the error.
    pub tasks: Option<Vec<Task>>,
}

/// When and how often tasks are tried again.
#[derive(Debug)]
pub struct Retry {
    /// The tasks are tried again only if this condition holds.
    pub when: Option<Expression>,
    /// The tasks are not tried again if this condition holds.
    pub except_when: Option<Expression>,
    /// The number of attempts after the first. `None` means no limit.
    pub count: Option<u64>,
    /// How long after the first error further attempts may begin.
    pub within: Option<Delay>,
    /// The time limit of one attempt.
    pub attempt: Option<Delay>,
    /// The first pause.
    pub delay: Option<Delay>,
    /// How the pauses grow.
    pub backoff: Backoff,
    /// The range of the random time that is added to a pause.
    pub jitter: Option<(Delay, Delay)>,
}

/// How the pauses between attempts grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backoff {
    /// All pauses have the same length.
    Constant,
    /// The second pause is twice as long as the first, the third pause three times as long.
    Linear,
    /// Each pause is twice as long as the one before.
    Exponential,
}

/// A span of time.
#[derive(Debug)]
pub enum Delay {
    /// A fixed time.
    Fixed(Duration),
    /// An expression whose result is a duration in ISO 8601.
    Expression(Expression),
}

/// Where the chain continues after a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// With the next task.
    Continue,
    /// After the list of tasks that contains the task.
    Exit,
    /// At the end of the run.
    End,
    /// With another task of the same list, given by its number.
    Task(usize),
}
