//! Draws what policies do over time, next to each other, as one self-contained SVG.
//!
//! Each scenario is a block with one column per policy and three rows: demand, instances and queue.
//! All panels of a row have the same scale, so that their heights can be compared.

use std::ops::Range;

use mote_api::harmless;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};
use plotters::prelude::*;

use crate::Point;
use crate::comparison::{Comparison, Run};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type PlotError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

// Colours by Okabe and Ito, which people with all common kinds of colour vision can distinguish.
const BLUE: RGBColor = RGBColor(0, 114, 178);
const ORANGE: RGBColor = RGBColor(230, 159, 0);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const VERMILION: RGBColor = RGBColor(213, 94, 0);
const PURPLE: RGBColor = RGBColor(204, 121, 167);
const INK: RGBColor = RGBColor(51, 51, 51);
const GRID: RGBColor = RGBColor(221, 221, 221);

// Sizes in pixels.
const PANEL_WIDTH: u32 = 340;
const PANEL_HEIGHT: u32 = 150;
const TITLE_HEIGHT: u32 = 50;
const LEGEND_HEIGHT: u32 = 34;
const LEGEND_STEP: i32 = 150;
const FONT: &str = "sans-serif";

/// Computes the value that is drawn for a point. The second argument is the time in seconds since
/// the previous point.
type Value = fn(&Point, f64) -> f64;

/// The content of a row of panels.
struct Row {
    axis: &'static str,
    /// The value that is drawn as a filled area, and its colour.
    area: (Value, RGBColor),
    /// The value that is drawn as a line over the area.
    line: Option<(Value, RGBColor)>,
}

const ROWS: [Row; 3] = [
    Row {
        axis: "calls per second",
        area: (|point, step_s| point.offered as f64 / step_s, BLUE),
        line: Some((|point, step_s| point.answered as f64 / step_s, ORANGE)),
    },
    Row {
        axis: "instances",
        area: (|point, _| f64::from(point.ready), GREEN),
        line: Some((|point, _| f64::from(point.ready + point.starting), VERMILION)),
    },
    Row { axis: "calls waiting", area: (|point, _| f64::from(point.queued), PURPLE), line: None },
];

const LEGEND: [(&str, RGBColor, bool); 5] = [
    ("demand", BLUE, true),
    ("answered", ORANGE, false),
    ("instances ready", GREEN, true),
    ("and starting", VERMILION, false),
    ("waiting", PURPLE, true),
];

/// Draws all scenarios, one below the other.
pub fn svg(comparisons: &[Comparison]) -> Result<String, String> {
    let columns = comparisons.iter().map(|it| it.runs.len()).max().unwrap_or(0).max(1) as u32;
    let block_height = TITLE_HEIGHT + PANEL_HEIGHT * ROWS.len() as u32;
    // The picture is at least as wide as the legend.
    let width = (PANEL_WIDTH * columns).max(LEGEND_STEP as u32 * LEGEND.len() as u32 + 20);
    let height = LEGEND_HEIGHT + block_height * comparisons.len() as u32;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
        draw(&root, comparisons, block_height).map_err(|error| error.to_string())?;
    }
    Ok(text)
}

fn draw<'a>(
    root: &Area<'a>,
    comparisons: &[Comparison],
    block_height: u32,
) -> Result<(), PlotError<'a>> {
    root.fill(&WHITE)?;
    let (top, mut rest) = root.split_vertically(LEGEND_HEIGHT);
    legend(&top)?;
    for comparison in comparisons {
        let (block, below) = rest.split_vertically(block_height);
        draw_block(&block, comparison)?;
        rest = below;
    }
    root.present()
}

fn legend<'a>(area: &Area<'a>) -> Result<(), PlotError<'a>> {
    for (at, (name, color, filled)) in LEGEND.into_iter().enumerate() {
        let x = 16 + at as i32 * LEGEND_STEP;
        if filled {
            area.draw(&Rectangle::new([(x, 12), (x + 18, 24)], color.mix(0.45).filled()))?;
            area.draw(&PathElement::new([(x, 12), (x + 18, 12)], color.stroke_width(2)))?;
        } else {
            area.draw(&PathElement::new([(x, 18), (x + 18, 18)], color.stroke_width(2)))?;
        }
        area.draw(&Text::new(name, (x + 24, 11), (FONT, 14).into_font().color(&INK)))?;
    }
    Ok(())
}

fn draw_block<'a>(area: &Area<'a>, comparison: &Comparison) -> Result<(), PlotError<'a>> {
    let (title, panels) = area.split_vertically(TITLE_HEIGHT);
    let name = harmless(&comparison.scenario);
    title.draw(&Text::new(name, (16, 6), (FONT, 18).into_font().color(&INK)))?;
    let time = TimeUnit::of(comparison.duration_s);
    for (row_at, row) in ROWS.iter().enumerate() {
        let top = comparison
            .runs
            .iter()
            .flat_map(|run| {
                series(run, row.area.0).chain(series(run, row.line.unwrap_or(row.area).0))
            })
            .map(|(_, value)| value)
            .fold(1.0, f64::max);
        for (column, run) in comparison.runs.iter().enumerate() {
            let column = column as u32;
            let row_y = row_at as u32 * PANEL_HEIGHT;
            let x = column * PANEL_WIDTH;
            if row_at == 0 {
                let style = (FONT, 15).into_font().color(&INK);
                title.draw(&Text::new(run.policy.clone(), (x as i32 + 56, 32), style))?;
            }
            let panel = panels.clone().shrink((x, row_y), (PANEL_WIDTH, PANEL_HEIGHT));
            draw_panel(&panel, row, run, &time, 0.0..top * 1.05, row_at + 1 == ROWS.len())?;
        }
    }
    Ok(())
}

fn draw_panel<'a>(
    area: &Area<'a>,
    row: &Row,
    run: &Run,
    time: &TimeUnit,
    values: Range<f64>,
    last: bool,
) -> Result<(), PlotError<'a>> {
    let fine = values.end < 8.0;
    let mut chart = ChartBuilder::on(area)
        .margin(4)
        .margin_right(14)
        .x_label_area_size(34)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..time.end, values)?;
    let label = move |value: &f64| if fine { format!("{value:.1}") } else { format!("{value:.0}") };
    let small = (FONT, 11).into_font().color(&INK);
    chart
        .configure_mesh()
        .x_labels(6)
        .y_labels(5)
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style(small.clone())
        .axis_desc_style((FONT, 12).into_font().color(&INK))
        .x_desc(if last { time.axis } else { "" })
        .y_desc(row.axis)
        .x_label_formatter(&|value| format!("{}", (value * 100.0).round() / 100.0))
        .y_label_formatter(&label)
        .draw()?;
    let (value, color) = row.area;
    let scaled = |(at_s, value): (f64, f64)| (at_s / time.seconds, value);
    chart.draw_series(
        AreaSeries::new(series(run, value).map(scaled), 0.0, color.mix(0.45)).border_style(color),
    )?;
    if let Some((value, color)) = row.line {
        chart.draw_series(LineSeries::new(series(run, value).map(scaled), color))?;
    }
    Ok(())
}

/// The points of a run as (seconds, value).
fn series(run: &Run, value: Value) -> impl Iterator<Item = (f64, f64)> {
    let points = &run.report.series;
    points.iter().enumerate().map(move |(at, point)| {
        let before_s = at.checked_sub(1).map_or(0.0, |before| points[before].time_s);
        let step_s = (point.time_s - before_s).max(1e-9);
        (point.time_s, value(point, step_s))
    })
}

/// The unit of the time axis.
struct TimeUnit {
    axis: &'static str,
    seconds: f64,
    /// The end of the time axis in this unit.
    end: f64,
}

impl TimeUnit {
    fn of(duration_s: f64) -> Self {
        let (axis, seconds) = match duration_s {
            ..300.0 => ("time (s)", 1.0),
            ..10_800.0 => ("time (min)", 60.0),
            ..259_200.0 => ("time (h)", 3_600.0),
            _ => ("time (d)", 86_400.0),
        };
        Self { axis, seconds, end: duration_s / seconds }
    }
}
