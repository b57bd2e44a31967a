from calligram.scenes.drawing.figure import Figure as Figure
from calligram.scenes.drawing.paint import encode_png as encode_png
from calligram.scenes.drawing.paint import paint_scene as paint_scene
from calligram.scenes.drawing.paint import picture_size as picture_size
from calligram.scenes.drawing.people import draw_person as draw_person
