//! A result as one HTML page that loads no other files.

use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use crate::{Report, Second};

const BLUE: RGBColor = RGBColor(0, 114, 178);
const VERMILION: RGBColor = RGBColor(213, 94, 0);
const SIZE: (u32, u32) = (720, 280);
const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222}\
pre{background:#f4f4f4;padding:1rem;overflow-x:auto}svg{max-width:100%;height:auto}";

type DrawError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;
type Points = Vec<(f64, f64)>;

/// The page of a result, with its heading and its table as text. Returns an error if a chart cannot
/// be drawn.
pub fn html(report: &Report, heading: &str, table: &str) -> Result<String, String> {
    let title = escape(heading);
    let by_share = chart(
        "share of all operations that were answered within a number of ms (failed operations never are)",
        &shares(report),
        BLUE,
    )?;
    let seconds = |value: fn(&Second) -> f64| -> Points {
        let count = report.seconds.len().min((report.elapsed_s.ceil() as usize).max(1));
        let values = report.seconds[..count].iter().map(value);
        values.enumerate().map(|(at, value)| (at as f64, value)).collect()
    };
    let rate = chart("answers per second, by second", &seconds(|s| s.answered as f64), BLUE)?;
    let max = chart("longest latency in ms, by second", &seconds(|s| s.max_ms), VERMILION)?;
    let warnings: String = report
        .warnings
        .iter()
        .map(|text| format!("<p><b>Note:</b> {}</p>\n", escape(text)))
        .collect();
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>{STYLE}</style>\n<h1>mote bench</h1>\n<pre>{}</pre>\n{warnings}{by_share}\n{rate}\n{max}\n\
         <p>{} on {} cores, Linux {}, mote {}, {}.</p>\n</html>\n",
        escape(table),
        escape(&report.machine.arch),
        report.machine.cores,
        escape(&report.machine.kernel),
        escape(&report.mote),
        escape(&report.at),
    ))
}

/// The cumulative distribution in percent, without the slowest thousandth of the answers.
fn shares(report: &Report) -> Points {
    let mut seen = 0;
    let mut points = vec![(0.0, 0.0)];
    for [nanos, count] in &report.histogram {
        seen += count;
        points.push((*nanos as f64 / 1e6, seen as f64 * 100.0 / report.offered.max(1) as f64));
        // The slowest thousandth would compress the rest of the curve against the axis.
        if seen as f64 >= 0.999 * report.answered as f64 {
            break;
        }
    }
    points
}

fn chart(title: &str, points: &Points, color: RGBColor) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text, title, points, color).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw<'a>(
    text: &'a mut String,
    title: &str,
    points: &Points,
    color: RGBColor,
) -> Result<(), DrawError<'a>> {
    let above = |value: fn(&(f64, f64)) -> f64| {
        points.iter().map(value).fold(0.0, f64::max).max(1e-3) * 1.05
    };
    let width = above(|point| point.0);
    let height = above(|point| point.1);
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..width, 0.0..height)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
    root.present()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
