//! Recorded demand: the simulation runs the calls that were read, and the error for an unreadable
//! line contains the line's number.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mote_lab::trace::{FUNCTIONS_MAX, TraceError, read};
use mote_lab::{Distribution, FunctionModel, NodeModel, Scenario, simulate};
use mote_spec::policy::Policy;

#[test]
fn bad_lines_are_refused_with_their_number() {
    let good: String = (0..40).map(|at| format!("{at},f,20\n")).collect();
    for bad in
        ["soon,f", "-1,f", "inf,f", "1e9,f", "1", ",f", "1,f,fast", "1,f,-2", "1;f", "1,f,2,3"]
    {
        let text = format!("# recorded\n\ntime_s,function,service_ms\n{good}{bad}\n{good}");
        let error = read(&text).expect_err(bad);
        assert!(error.to_string().starts_with("line 44: "), "{bad}: {error}");
    }
}

#[test]
fn files_of_other_systems_are_read() {
    let plain = read("0.5,a\n1,b,3\n").unwrap();
    for text in [
        "\u{feff}time_s,function,service_ms\r\n0.5,a,\r\n1,b,3\r\n",
        "# made by hand\n time_s , function \n 0.5 , a \n\n1,b,3.0",
    ] {
        assert_eq!(read(text).unwrap(), plain, "{text:?}");
    }
}

#[test]
fn functions_are_bounded() {
    let lines = |count| (0..count).map(|at| format!("1,f{at}\n")).collect::<String>();
    assert_eq!(read(&lines(FUNCTIONS_MAX)).unwrap().len(), FUNCTIONS_MAX);
    assert_eq!(read(&lines(FUNCTIONS_MAX + 1)), Err(TraceError::TooManyFunctions));
}

#[test]
fn every_recorded_call_is_simulated_with_its_run_time() {
    let text: String = (0..100).map(|at| format!("{},f,30\n", f64::from(at) * 0.2)).collect();
    let functions = read(&text).unwrap().into_iter();
    let never = Distribution::Constant { ms: 1e6 };
    let start = Distribution::Constant { ms: 50.0 };
    let report = simulate(&Scenario {
        name: "recorded".into(),
        seed: 1,
        duration_s: 21.0,
        sample_s: 0.0,
        node: NodeModel::default(),
        policy: Policy::Auto,
        balance: Default::default(),
        functions: functions
            .map(|(name, arrivals)| FunctionModel::new(&name, arrivals, never, start))
            .collect(),
    });
    assert_eq!((report.offered, report.answered, report.cold), (100, 100, 1));
    assert!((80.0..=81.0).contains(&report.response.max_ms), "{:?}", report.response);
}
