// A small line without axes, for rows of a table. The number next to it says what it shows.

export function Spark({ values, failed, width = 96, height = 22 }: { values: number[]; failed?: number[]; width?: number; height?: number }) {
  if (values.length < 2) return <svg class="spark" width={width} height={height} aria-hidden="true" />;
  const high = Math.max(...values, 0.001);
  const step = width / (values.length - 1);
  const at = (value: number) => (height - 2 - (value / high) * (height - 4)).toFixed(1);
  const line = values.map((value, index) => `${(index * step).toFixed(1)},${at(value)}`).join(" ");
  return (
    <svg class="spark" width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
      <polygon class="spark-area" points={`0,${height} ${line} ${width},${height}`} />
      <polyline class="spark-line" points={line} />
      {failed?.map((value, index) =>
        value > 0 ? <circle class="spark-fail" key={index} cx={(index * step).toFixed(1)} cy={at(values[index] ?? 0)} r="2" /> : null,
      )}
    </svg>
  );
}
